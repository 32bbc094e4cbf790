"""Host to accelerator: the only folder with streams. It never sees a rank."""
