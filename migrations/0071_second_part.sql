-- The other part of a problem with both triangles, of the job for the first. In a column of its own: what earlier versions read of a job
-- stays as they know it, and they go on to list jobs while servers of both versions use one store.
ALTER TABLE jobs ADD COLUMN second_part TEXT;
