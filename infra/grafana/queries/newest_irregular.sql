-- The newest irregular iteration of the time range.
SELECT max(iteration) FROM iterations
WHERE job = {job:String} AND attempt = {attempt:Int64} AND is_irregular AND $__timeFilter(started_at)
