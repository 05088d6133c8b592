-- What retention leaves alone: when it was pinned, or nothing.
ALTER TABLE matrices ADD COLUMN pinned_at INTEGER;
ALTER TABLE plans ADD COLUMN pinned_at INTEGER;

CREATE INDEX matrices_pinned ON matrices (pinned_at) WHERE pinned_at IS NOT NULL;
CREATE INDEX plans_pinned ON plans (pinned_at) WHERE pinned_at IS NOT NULL;
