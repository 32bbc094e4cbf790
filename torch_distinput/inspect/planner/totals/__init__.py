"""An epoch over many workers, counted without playing it: integers only."""
