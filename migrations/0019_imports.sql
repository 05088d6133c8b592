-- Jobs that were taken in from another store: from which, and when. Their trials are learned from as those of jobs here; nothing
-- resumes them, since they have ended.
ALTER TABLE jobs ADD COLUMN imported_from TEXT;
ALTER TABLE jobs ADD COLUMN imported_at INTEGER CHECK ((imported_at IS NULL) = (imported_from IS NULL));

-- Exports read plans by age.
CREATE INDEX plans_exported ON plans (created_at, id);
