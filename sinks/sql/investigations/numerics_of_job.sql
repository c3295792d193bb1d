-- title: Loss and norms of a job
-- theme: an iteration
-- description: The median over ranks of loss and norms in each iteration, the lowest and the highest rank's, and the
--     rank that is furthest from the median (none if all are alike). Some rank always is; the same one again and again,
--     or one far outside the band of the others, stands out. grad_norm is that after the reduction, alike on ranks that
--     share a gradient; local_norm that before it. inf is a value that was not finite.
-- empty: No rank of these iterations sent a loss or a norm, or they are older than rows are kept.
-- parameter: job String = NEWEST | training job; default: the newest
-- parameter: iteration Nullable(Int64) = NULL | the last iteration to show; default: the newest
-- parameter: attempt Nullable(Int64) = NULL | start number of the job; default: the newest
-- parameter: limit UInt32 = 50 | iterations at most, the newest first
WITH
    (
        SELECT ifNull(
            {attempt:Nullable(Int64)},
            (SELECT attempt FROM rank_iterations WHERE job = {job:String} ORDER BY attempt DESC LIMIT 1)
        )
    ) AS wanted,
    chosen AS
    (
        SELECT iteration
        FROM iterations FINAL
        WHERE job = {job:String} AND attempt = wanted AND iteration <= ifNull({iteration:Nullable(Int64)}, iteration)
        ORDER BY iteration DESC
        LIMIT {limit:UInt32}
    )
SELECT
    iteration,
    count() AS ranks,
    any(middle_loss) AS loss,
    min(own_loss) AS loss_lowest,
    max(own_loss) AS loss_highest,
    if(loss_lowest = loss_highest, NULL, argMax(rank, if(own_loss = middle_loss, 0, abs(own_loss - middle_loss))))
        AS loss_rank,
    any(middle_norm) AS grad_norm,
    max(own_norm) AS grad_norm_highest,
    if(min(own_norm) = max(own_norm), NULL,
        argMax(rank, if(own_norm = middle_norm, 0, abs(own_norm - middle_norm)))) AS grad_norm_rank,
    any(middle_local) AS local_norm,
    min(own_local) AS local_norm_lowest,
    max(own_local) AS local_norm_highest,
    if(local_norm_lowest = local_norm_highest, NULL,
        argMax(rank, if(own_local = middle_local, 0, abs(own_local - middle_local)))) AS local_norm_rank,
    sum(elements) AS not_finite
FROM
(
    SELECT
        iteration, rank, loss AS own_loss, grad_norm AS own_norm, local_grad_norm AS own_local, not_finite AS elements,
        -- The lower of two middle values: between a finite and an infinite one there is no mean.
        quantileExactLow(0.5)(loss) OVER (PARTITION BY iteration) AS middle_loss,
        quantileExactLow(0.5)(grad_norm) OVER (PARTITION BY iteration) AS middle_norm,
        quantileExactLow(0.5)(local_grad_norm) OVER (PARTITION BY iteration) AS middle_local
    FROM rank_iterations FINAL
    WHERE job = {job:String} AND attempt = wanted AND iteration IN (SELECT iteration FROM chosen)
        AND (loss IS NOT NULL OR grad_norm IS NOT NULL OR local_grad_norm IS NOT NULL)
)
GROUP BY iteration
ORDER BY iteration DESC
LIMIT {limit:UInt32}
