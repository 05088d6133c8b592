-- On whose behalf work is done and matrices are stored, for quotas and fair turns. What was there before is nobody's.
ALTER TABLE tokens ADD COLUMN limits TEXT NOT NULL DEFAULT '{}';

ALTER TABLE jobs ADD COLUMN token TEXT;
ALTER TABLE jobs ADD COLUMN namespace TEXT NOT NULL DEFAULT 'default';
ALTER TABLE jobs ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
-- How much each token has searched lately, and what it has queued.
CREATE INDEX jobs_by_token ON jobs (token, finished_at);

ALTER TABLE matrices ADD COLUMN token TEXT;
-- What it counts for in a quota of bytes.
ALTER TABLE matrices ADD COLUMN charged INTEGER NOT NULL DEFAULT 0;
CREATE INDEX matrices_by_token ON matrices (token, charged) WHERE token IS NOT NULL;
