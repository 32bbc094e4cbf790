"""All ranks together: the only room with torch.distributed. No example enters here."""
