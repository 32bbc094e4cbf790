"""What is made of sources, as a user writes it: mixed, packed, in buckets, by budget and cost."""
