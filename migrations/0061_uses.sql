-- Uses are those of this half of a month and of the one before, so that what was used much, once, does not come before what is used now.
-- `period` is the half that `uses` is of, counted from the beginning of the epoch.
ALTER TABLE drift ADD COLUMN uses_before INTEGER NOT NULL DEFAULT 0;
ALTER TABLE drift ADD COLUMN period INTEGER NOT NULL DEFAULT 0;
UPDATE drift SET period = used_at / 1296000000 WHERE used_at IS NOT NULL;
