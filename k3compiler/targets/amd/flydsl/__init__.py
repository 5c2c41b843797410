"""MXFP4 expert matrices for gfx950 through FlyDSL: lowering, layouts, and the adapter to its MLIR."""
