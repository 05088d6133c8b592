-- Indexes for what people look at all day: lists by device, the story of a job, what was tried, how well models did.
-- The terms of partial and expression indexes are repeated word for word by the queries that mean them.

CREATE INDEX jobs_by_device ON jobs (device, created_at, id);
CREATE INDEX jobs_by_device_and_state ON jobs (device, state, created_at, id);

-- A funnel leaves thousands of pruned candidates beside a few dozen that were tried.
CREATE INDEX trials_tried ON trials (job, ordinal, state) WHERE state <> 'pruned';

-- Candidates by what became of them, without reading one: families, and what each constraint removed. The ordinal is what a
-- sample of them is drawn by.
CREATE INDEX trials_sorted ON trials (
    job, body ->> '$.candidate.family', state, body ->> '$.state.pruned_by', ordinal
);

-- Log lines and funnels, a few among the updates of a job and its trials.
CREATE INDEX events_told ON events (job, seq) WHERE trial IS NULL AND body ->> '$.event' <> 'job';

-- All that is summed of a plan's model, so that no plan is read for it.
CREATE INDEX plans_by_model ON plans (
    created_at,
    body ->> '$.model_error.model',
    device_class,
    body ->> '$.problem.op',
    body ->> '$.model_error.trials',
    body ->> '$.model_error.median_ratio',
    body ->> '$.model_error.spread',
    body ->> '$.model_error.rank_correlation'
) WHERE body ->> '$.model_error.model' IS NOT NULL;

-- Names are sought among the newest matrices, without reading their facts.
CREATE INDEX matrices_named ON matrices (created_at, digest, facts ->> '$.name');

-- Newest first; the rest of the order is the key, which every index ends with.
CREATE INDEX quarantine_newest ON quarantine (at);
CREATE INDEX quarantine_newest_of_class ON quarantine (device_class, at);
