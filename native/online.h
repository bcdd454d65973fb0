// The numbers of the online softmax: sums that keep up with the highest score seen.

constexpr int64_t BLOCK = 64;      // keys at a time
constexpr float NOTHING = -1e30f;  // a maximum before any score: finite, so that differences stay numbers
constexpr float LOG2_E = 1.44269504088896341f, LN_2 = 0.693147180559945309f;
// The running maximum may lag this many powers of two behind the scores before everything is rescaled: sums keep
// float32's relative precision, and rescaling becomes rare.
constexpr float LAG = 8.0f;

// A row of D numbers as operands of a product takes this many floats: pairs of bf16 fit two to a float.
INLINE int64_t padded(int64_t size) { return (size + W) / W * W; }

// The sums before any key: empty, or with the weight that a sink logit takes.
INLINE void begin_sums(float sink, float &maximum, float &normaliser) {
    const bool there = sink != -INFINITY;
    maximum = there ? sink : NOTHING;
    normaliser = there ? 1.0f : 0.0f;
}
