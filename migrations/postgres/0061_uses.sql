-- What migration 61 of SQLite makes.
ALTER TABLE drift ADD COLUMN uses_before BIGINT NOT NULL DEFAULT 0;
ALTER TABLE drift ADD COLUMN period BIGINT NOT NULL DEFAULT 0;
UPDATE drift SET period = used_at / 1296000000 WHERE used_at IS NOT NULL;
