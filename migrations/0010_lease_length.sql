-- How long a lease was given for. One that reaches further ahead than this was given by a clock that has been set back since.
ALTER TABLE jobs ADD COLUMN lease_ms INTEGER;
