"""One epoch on this worker: what is read, agreed on, fed and audited. It never sees the facade."""
