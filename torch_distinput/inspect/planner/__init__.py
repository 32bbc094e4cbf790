"""What an epoch will be, before it runs: by listings and counts alone, without ranks and torch."""
