"""What making a step took: measured where it is read, decoded and collated."""
