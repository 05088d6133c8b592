-- What lists of matrices and jobs are sorted by. A row of a version before this one has no counts and comes last.
ALTER TABLE holdings ADD COLUMN n_rows INTEGER;
ALTER TABLE holdings ADD COLUMN nnz INTEGER;
UPDATE holdings SET
    n_rows = (SELECT CAST(facts ->> '$.rows' AS INTEGER) FROM matrices WHERE matrices.digest = holdings.digest),
    nnz = (SELECT CAST(facts ->> '$.nnz' AS INTEGER) FROM matrices WHERE matrices.digest = holdings.digest);
-- The beginning of a name, since the whole may be longer than an entry of an index can be in PostgreSQL.
CREATE INDEX holdings_by_name ON holdings (namespace, lower(substr(name, 1, 64)), digest);
CREATE INDEX holdings_by_rows ON holdings (namespace, n_rows, digest);
CREATE INDEX holdings_by_nnz ON holdings (namespace, nnz, digest);

CREATE INDEX jobs_by_took ON jobs (namespace, CAST(finished_at - started_at AS DOUBLE PRECISION), id);
CREATE INDEX jobs_by_median ON jobs (namespace, CAST(best ->> '$.median_us' AS DOUBLE PRECISION), id);
CREATE INDEX jobs_by_speedup ON jobs (namespace, CAST(best ->> '$.speedup' AS DOUBLE PRECISION), id);
