-- Variable attempt: starts of the job, the newest first.
SELECT toString(attempt) AS attempt_name FROM jobs WHERE job = {job:String} GROUP BY attempt ORDER BY attempt DESC LIMIT 100
