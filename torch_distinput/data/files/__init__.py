"""FileDataset: a recipe of files and operations, and the stream of rows it describes."""
