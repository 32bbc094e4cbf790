"""One epoch on this worker: what is read, agreed on, fed and audited. No facade enters here."""
