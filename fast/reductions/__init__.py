"""From a problem on a geometry to the bare arrays that the engine needs, and back: one module per geometry."""

REDUCTIONS = {
    "Dense": "dualmech.fast.reductions.dense:ascend_dense",
    "Blocks": "dualmech.fast.reductions.blocks:ascend_blocks",
    "Product": "dualmech.fast.reductions.product:solve_product",
    "Split": "dualmech.fast.reductions.split:solve_split",
    "Stream": "dualmech.fast.reductions.stream:ascend_stream",
    "RangeStream": "dualmech.fast.reductions.stream:ascend_stream",
    "Epochs": "dualmech.fast.reductions.epochs:ascend_epochs",
    "EpochStream": "dualmech.fast.reductions.epoch_stream:ascend_drawn_out",
}
"""The place of each geometry's solver, by the name of the geometry's class."""
