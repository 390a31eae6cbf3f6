"""Ends that a run does not choose: at most one line, no trace, the status of a shell, and nothing left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

LINE = "dualmech: interrupted\n"
LIMIT = 600.0
"""Seconds that a process may take. A busy machine starts an interpreter slowly."""
READY = "sys.stderr.write('ready\\n'); sys.stderr.flush()\n"
UNINTERRUPTIBLE = "sum(itertools.repeat(1))\n"  # a loop in C that never looks at signals, nor lets others run

MOMENTS = {
    "starting up": (
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'numpy':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    ),
    "solving": (
        "from dualmech.fast.engine import ascent, newton\n"
        "def interrupted(*arguments):\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "newton.step = ascent.fixed_point_step = interrupted\n"
    ),
    "writing": (
        "import numpy as np\n"
        "def interrupted(*arguments, **options):\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "np.lib.format.write_array = interrupted\n"
    ),
    "raised by a backend": (
        "from dualmech.fast.engine import ascent, newton\n"
        "def interrupted(*arguments):\n"
        "    raise KeyboardInterrupt\n"
        "newton.step = ascent.fixed_point_step = interrupted\n"
    ),
}


SCRIPT = "from dualmech.command import entry\nentry.main()\n"
MODULE = "import runpy\nrunpy.run_module('dualmech', run_name='__main__', alter_sys=True)\n"


def started(code: str, folder: Path, command: str = SCRIPT) -> subprocess.Popen[str]:
    """Start the command, as its script does, after some code of a test."""
    whole = (
        "import itertools, os, signal, sys, time\n"
        # What a run in the background ignores, and one that outlives its session.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        f"{code}"
        "sys.argv = ['dualmech', 'solve', 'prefix:4', '-o', 'out.npz']\n"
        f"{command}"
    )
    return subprocess.Popen(
        [sys.executable, "-c", whole], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def in_place_of_the_command(code: str) -> str:
    """Return code that makes other code the command's work."""
    lines = "".join(f"        {line}\n" for line in code.splitlines())
    return f"class Work:\n    def main():\n{lines}sys.modules['dualmech.command.main'] = Work\n"


@pytest.mark.parametrize(
    ("moment", "command"), [*((name, SCRIPT) for name in MOMENTS), ("starting up", MODULE)], ids=[*MOMENTS, "module"]
)
def test_an_interrupt_is_one_line_and_status_130_and_leaves_no_file(moment: str, command: str, tmp_path: Path) -> None:
    process = started(MOMENTS[moment], tmp_path, command)
    assert (*process.communicate(timeout=LIMIT), process.returncode) == ("", LINE, 130)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "status", "said"), [("--version", 0, "dualmech 0."), ("solve", 2, "-m dualmech solve")]
)
def test_the_module_runs_as_the_script(line: str, status: int, said: str) -> None:
    done = subprocess.run([sys.executable, "-m", "dualmech", *line.split()], capture_output=True, text=True)
    assert done.returncode == status and said in done.stdout + done.stderr


@pytest.mark.parametrize(("end", "status", "said"), [(signal.SIGINT, 130, LINE), (signal.SIGTERM, -signal.SIGTERM, "")])
def test_what_never_looks_at_signals_is_ended(end: signal.Signals, status: int, said: str, tmp_path: Path) -> None:
    process = started(in_place_of_the_command(READY + UNINTERRUPTIBLE), tmp_path)
    assert process.stderr is not None and process.stderr.readline() == "ready\n"
    process.send_signal(end)
    assert (*process.communicate(timeout=LIMIT), process.returncode) == ("", said, status)
    assert not list(tmp_path.iterdir())


def test_a_process_that_has_ended_already_is_no_trace(tmp_path: Path) -> None:
    """As where the keyboard's own interrupt has reached it first."""
    gone = (
        "waitpid = os.waitpid\n"
        "def late(worker, options):\n"
        "    ended = waitpid(worker, options)\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "    return ended\n"
        "os.waitpid = late\n"
    )
    process = started(gone + in_place_of_the_command("os._exit(130)\n"), tmp_path)
    assert (*process.communicate(timeout=LIMIT), process.returncode) == ("", LINE, 130)


def test_the_work_ends_with_the_process_that_was_started(tmp_path: Path) -> None:
    process = started(in_place_of_the_command(READY + "time.sleep(600)\n"), tmp_path)
    assert process.stderr is not None and process.stderr.readline() == "ready\n"
    process.kill()
    # Both hold the other end of the pipe: it closes once both are gone.
    assert process.communicate(timeout=LIMIT) == ("", "")


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("reached", ["the one that was started", "both"])
def test_signals_that_end_a_session_leave_no_file(end: signal.Signals, reached: str, tmp_path: Path) -> None:
    """One signal ends both processes as it does, and what is half written goes with them."""
    half = (
        "from pathlib import Path\n"
        "from dualmech.files.atomic import temporary_next_to\n"
        "with temporary_next_to(Path('out.npz')) as path:\n"
        "    path.write_text('half')\n"
        "    sys.stderr.write('ready\\n'); sys.stderr.flush()\n"
        "    time.sleep(600)\n"
    )
    process = started("os.setpgid(0, 0)\n" + in_place_of_the_command(half), tmp_path)
    assert process.stderr is not None and process.stderr.readline() == "ready\n"
    assert len([*tmp_path.iterdir()]) == 1
    (os.killpg if reached == "both" else os.kill)(process.pid, end)
    assert process.communicate(timeout=LIMIT) == ("", "")
    assert process.returncode == -end
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("work", ["print('x', flush=True)\n", "import typer\ntyper.echo('x')\n"])
def test_readers_that_have_enough_end_it_quietly(work: str, tmp_path: Path) -> None:
    """As of ``dualmech … | head -1``; typer would turn a closed pipe into status 1."""
    lines = f"import typer\ndef told():\n    for _ in range(10**6):\n        {work.splitlines()[-1]}\ntyper.run(told)\n"
    with started(in_place_of_the_command("del sys.argv[1:]\n" + lines), tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == "x\n"
        process.stdout.close()
        assert process.stderr is not None and process.stderr.read() == ""
        assert process.wait(timeout=LIMIT) == -signal.SIGPIPE


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGABRT])
def test_where_memory_runs_out_the_line_says_so(end: signal.Signals, tmp_path: Path) -> None:
    """The system kills a process that takes too much; libraries that get no memory abort."""
    process = started(in_place_of_the_command(f"os.kill(os.getpid(), {int(end)})\n"), tmp_path)
    out, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("dualmech: ") and "memory runs out" in err and err.count("\n") == 1


@pytest.mark.parametrize("end", [signal.SIGSEGV, signal.SIGUSR1])
def test_an_end_by_another_signal_is_passed_on(end: signal.Signals, tmp_path: Path) -> None:
    process = started(in_place_of_the_command(f"os.kill(os.getpid(), {int(end)})\n"), tmp_path)
    process.communicate(timeout=LIMIT)
    assert process.returncode == -end


def test_where_interrupts_are_ignored_they_stay_so(tmp_path: Path) -> None:
    """As of a command that a shell runs in the background."""
    work = in_place_of_the_command("signal.raise_signal(signal.SIGINT)\nsys.exit(7)\n")
    process = started("signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + work, tmp_path)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 7


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep to limits of address space")
@pytest.mark.parametrize(
    "limit",
    [
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (3 * 2**27, resource.RLIM_INFINITY))\n",
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'scipy':\n"
        "            raise ImportError('libscipy.so: failed to map segment from shared object')\n"
        "sys.meta_path.insert(0, Finder())\n",
    ],
    ids=["limit", "library"],
)
def test_too_little_memory_to_begin_is_one_line(limit: str, tmp_path: Path) -> None:
    process = started(limit, tmp_path)
    said, errors = process.communicate(timeout=LIMIT)
    assert process.returncode == 1
    assert not said and not list(tmp_path.iterdir())
    assert errors.startswith("dualmech: not enough memory to start: ") and errors.count("\n") == 1
