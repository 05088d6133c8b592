-- What migration 71 of SQLite makes.
ALTER TABLE jobs ADD COLUMN second_part TEXT;
