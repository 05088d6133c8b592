// The inputs of a check, drawn from its seed, and the comparison of an output with its samples.
#ifndef SPARSETUNE_CHECK_HPP
#define SPARSETUNE_CHECK_HPP

#include "file.hpp"

#include <cmath>
#include <limits>
#include <vector>

namespace sparsetune {

namespace detail {

template <class T>
T loaded(const unsigned char* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class T>
void store(unsigned char* to, T value) {
    std::memcpy(to, &value, sizeof value);
}

// The bits of IEEE binary16, ties to even; too large values become infinite.
inline std::uint16_t half_bits(double value) {
    const unsigned sign = std::signbit(value) ? 0x8000u : 0u;
    const double size = std::fabs(value);
    if (std::isnan(value)) {
        return static_cast<std::uint16_t>(sign | 0x7e00u);
    }
    int exponent = 0;
    std::frexp(size, &exponent);
    // The distance of neighbours: 11 significant bits, down to that of subnormals.
    const int spacing = size == 0.0 || exponent - 11 < -24 ? -24 : exponent - 11;
    const double rounded = std::isinf(size) ? size : std::ldexp(std::nearbyint(std::ldexp(size, -spacing)), spacing);
    if (rounded > 65504.0) {
        return static_cast<std::uint16_t>(sign | 0x7c00u);
    }
    if (rounded < std::ldexp(1.0, -14)) {
        return static_cast<std::uint16_t>(sign | static_cast<unsigned>(std::ldexp(rounded, 24)));
    }
    std::frexp(rounded, &exponent);
    const unsigned fraction = static_cast<unsigned>(std::ldexp(rounded, 11 - exponent)) & 0x3ffu;
    return static_cast<std::uint16_t>(sign | static_cast<unsigned>(exponent + 14) << 10 | fraction);
}

inline double half_value(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31;
    const double fraction = bits & 0x3ff;
    double size = 0.0;
    if (exponent == 31) {
        size = fraction == 0.0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    } else {
        size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024.0, exponent - 25);
    }
    return bits & 0x8000 ? -size : size;
}

// The bits of bf16, the upper half of binary32; ties to even, too large values become infinite.
inline std::uint16_t bf16_bits(double value) {
    const double size = std::fabs(value);
    int exponent = 0;
    std::frexp(size, &exponent);
    // The distance of neighbours: 8 significant bits, down to that of subnormals.
    const int spacing = size == 0.0 || exponent - 8 < -133 ? -133 : exponent - 8;
    const double rounded =
        std::isfinite(size) ? std::ldexp(std::nearbyint(std::ldexp(size, -spacing)), spacing) : size;
    const double most = std::ldexp(255.0, 120);
    const float upper = static_cast<float>(rounded > most ? std::numeric_limits<double>::infinity() : rounded);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &upper, sizeof upper);
    return static_cast<std::uint16_t>((bits >> 16 & 0x7fffu) | (std::signbit(value) ? 0x8000u : 0u));
}

inline double bf16_value(std::uint16_t bits) {
    const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16;
    float value = 0.0f;
    std::memcpy(&value, &word, sizeof value);
    return static_cast<double>(value);
}

// Element `at` of an operand.
inline double element(const std::vector<unsigned char>& data, Element type, std::uint64_t at) {
    const unsigned char* from = data.data() + at * bytes_of(type);
    switch (type) {
        case Element::f16: return half_value(loaded<std::uint16_t>(from));
        case Element::bf16: return bf16_value(loaded<std::uint16_t>(from));
        case Element::f32: return static_cast<double>(loaded<float>(from));
        default: return loaded<double>(from);
    }
}

// SplitMix64.
inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t at) {
    std::uint64_t z = seed + 0x9e3779b97f4a7c15u * (at + 1);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

// An operand of numbers in [-1, 1), times the scale.
inline std::vector<unsigned char> drawn(const Dense& dense, std::uint64_t seed, double scale) {
    std::vector<unsigned char> data(dense.bytes());
    for (std::uint64_t i = 0; i < dense.elements(); ++i) {
        const std::uint64_t bits = random_bits(seed, i);
        unsigned char* to = data.data() + i * bytes_of(dense.element);
        if (dense.element == Element::f64) {
            store(to, (std::ldexp(static_cast<double>(bits >> 11), -52) - 1.0) * scale);
            continue;
        }
        const double value = (std::ldexp(static_cast<double>(bits >> 40), -23) - 1.0) * scale;
        if (dense.element == Element::f16) {
            store(to, half_bits(value));
        } else if (dense.element == Element::bf16) {
            store(to, bf16_bits(value));
        } else {
            store(to, static_cast<float>(value));
        }
    }
    return data;
}

// An error as a share of its bound; infinite for what is no number.
inline double share(double error, double bound) {
    if (error == 0.0) {
        return 0.0;
    }
    const double share = error / bound;
    return std::isnan(share) || bound <= 0.0 ? std::numeric_limits<double>::infinity() : share;
}

// Numbers of the check.
template <class T>
class Numbers {
public:
    Numbers(const File& file, Place place) : from_(file.at(place)), count_(place.bytes / sizeof(T)) {}

    T operator[](std::uint64_t at) const {
        if (at >= count_) {
            throw Error("The check of the bundle is incomplete.");
        }
        return loaded<T>(from_ + at * sizeof(T));
    }

private:
    const unsigned char* from_;
    std::uint64_t count_;
};

// The inputs of a check and, after the call, its output.
struct Trial {
    std::vector<unsigned char> b;
    std::vector<unsigned char> c;

    explicit Trial(const Description& plan) : b(drawn(plan.b, plan.check.seed, plan.check.scale)) {
        if (sha256(b.data(), b.size()) != plan.check.b_sha256) {
            throw Error("The input of the check was not drawn as in the bundle; this is a fault of sparsetune.");
        }
        // All bits set are no number, so what a call does not write is found.
        c = plan.check.beta == 0.0 ? std::vector<unsigned char>(plan.c.bytes(), 0xff)
                                   : drawn(plan.c, plan.check.seed + 1, 1.0);
    }

    CheckReport report(const Description& plan, const File& file) const {
        const Check& check = plan.check;
        double worst = 0.0;
        const Numbers<double> value(file, check.value), bound(file, check.bound);
        if (check.kind == CheckKind::product) {
            const Numbers<std::uint64_t> index(file, check.index);
            for (std::uint64_t k = 0; k < check.samples; ++k) {
                if (index[k] >= plan.c.elements()) {
                    throw Error("The check of the bundle names a place that the output does not have.");
                }
                const double error = std::fabs(element(c, plan.c.element, index[k]) - value[k]);
                worst = std::fmax(worst, share(error, bound[k]));
            }
            return {check.samples, worst};
        }
        const Numbers<std::uint64_t> row(file, check.row), row_ptr(file, check.row_ptr), col(file, check.col);
        const Numbers<double> diagonal(file, check.diagonal);
        for (std::uint64_t k = 0; k < check.samples; ++k) {
            for (std::uint64_t side = 0; side < plan.b.cols; ++side) {
                const double known = at(b, plan.b, row[k], side);
                const double own = diagonal[k] * at(c, plan.c, row[k], side);
                double residual = own - known, size = std::fabs(own) + std::fabs(known);
                for (std::uint64_t e = row_ptr[k]; e < row_ptr[k + 1]; ++e) {
                    const double term = value[e] * at(c, plan.c, col[e], side);
                    residual += term;
                    size += std::fabs(term);
                }
                worst = std::fmax(worst, share(std::fabs(residual), bound[k] * size));
            }
        }
        return {check.samples, worst};
    }

private:
    static double at(const std::vector<unsigned char>& data, const Dense& dense, std::uint64_t row, std::uint64_t col) {
        if (row >= dense.rows) {
            throw Error("The check of the bundle names a row that the system does not have.");
        }
        return element(data, dense.element, dense.row_major ? row * dense.cols + col : col * dense.rows + row);
    }
};

}  // namespace detail

}  // namespace sparsetune

#endif
