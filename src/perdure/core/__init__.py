"""Pure decisions and values: no file, clock, thread or socket is touched from here."""
