"""The command line, meshes, and where a run is launched."""
