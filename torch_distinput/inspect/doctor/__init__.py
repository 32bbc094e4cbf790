"""Says what a DataLoader does on many ranks: by arithmetic, or by watching a script."""
