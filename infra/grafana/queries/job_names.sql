-- Variable job: those that announced themselves most recently first.
SELECT job FROM jobs GROUP BY job ORDER BY max(stored_at) DESC, job LIMIT 1000
