"""Reductions of problems on a geometry to the arrays of the engine: one module per geometry."""

REDUCTIONS = {
    "Dense": "dualmech.fast.reductions.dense:ascend_dense",
    "Blocks": "dualmech.fast.reductions.blocks:ascend_blocks",
    "Product": "dualmech.fast.reductions.product:solve_product",
    "Split": "dualmech.fast.reductions.split:solve_split",
    "Stream": "dualmech.fast.reductions.stream:ascend_stream",
    "RangeStream": "dualmech.fast.reductions.stream:ascend_stream",
    "Epochs": "dualmech.fast.reductions.epochs:ascend_epochs",
    "EpochStream": "dualmech.fast.reductions.epoch_stream:ascend_prolonged",
}
"""The solver of each geometry, by the name of the geometry's class."""
