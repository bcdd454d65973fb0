// What becomes of a query's sums: its row of the output, and its log-sum-exp.

template <class N>
static void write_row(const heedful_problem &p, int64_t b, int64_t h, int64_t q, const float *sums, float maximum,
                      float normaliser) {
    const float kept = p.dropout_p > 0 ? (float)(1.0 / fmax(1.0 - p.dropout_p, 0x1p-32)) : 1.0f;
    N *to = (N *)p.output.data + b * p.output.batch + h * p.output.head + q * p.output.token;
    narrow_row(sums, p.Dv, normaliser == 0 ? 0.0f : kept / normaliser, to);
    if (p.lse)
        p.lse[(b * p.Hq + h) * p.Tq + q] = normaliser == 0 ? -INFINITY : maximum + logf(normaliser);
}
