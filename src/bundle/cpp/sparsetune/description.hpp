// What a plan consists of, as plan.hpp describes it: shapes, launches, and places in the bundle's file.
#ifndef SPARSETUNE_DESCRIPTION_HPP
#define SPARSETUNE_DESCRIPTION_HPP

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

// As in cuda.h; a program may include that too, before or after.
typedef struct CUstream_st* CUstream;

namespace sparsetune {

// Why a plan cannot be loaded or run, as a sentence.
class Error : public std::runtime_error {
public:
    explicit Error(const std::string& sentence) : std::runtime_error(sentence) {}
};

// The plan cannot run on this machine: there is no device, driver or library that it needs.
class Unavailable : public Error {
public:
    explicit Unavailable(const std::string& sentence) : Error(sentence) {}
};

// Elements of one type, or a fixed table of plan.hpp.
template <class T>
struct Table {
    const T* first;
    std::size_t count;

    constexpr const T* begin() const { return first; }
    constexpr const T* end() const { return first + count; }
    constexpr const T& operator[](std::size_t at) const { return first[at]; }
};

// Bytes of the bundle's file; none if the length is 0.
struct Place {
    std::uint64_t offset;
    std::uint64_t bytes;
};

enum class Element { u16, u32, u64, f16, f32, f64, bf16 };

constexpr std::size_t bytes_of(Element element) {
    return element == Element::u16 || element == Element::f16 || element == Element::bf16 ? 2
           : element == Element::u32 || element == Element::f32                           ? 4
                                                                                          : 8;
}

enum class Role { array, b, c, scratch, turn, epoch, max_wait_ns, status, u32, u64, f32, alpha, beta };

// A kernel argument. `first` is the index of the array or of the scratch buffer, the even one of a turn, the bits of a
// constant, or the Element of a factor; `second` is the odd buffer of a turn.
struct Argument {
    Role role;
    std::uint64_t first;
    std::uint64_t second;
};

struct Step {
    const char* symbol;
    unsigned grid[3];
    unsigned block[3];
    unsigned cluster;
    unsigned shared_bytes;
    // Whether it may begin while the kernel before it in the stream still runs, for which it waits itself.
    bool overlaps;
    Table<Argument> arguments;
};

// Machine code, and the text to fall back on.
struct Module {
    Place cubin;
    Place ptx;
};

// Whether an array holds values of the matrix, and how new ones get there; `quotients` are values divided by others.
enum class Values { none, in_order, by_map, quotients };

struct Array {
    const char* name;
    Element element;
    std::uint64_t length;
    // Left out of the bundle if false: then new values fill it.
    bool included;
    Place data;
    Values values;
    // A u32 for each place: the entry of the matrix, or 4294967295 for none. Of quotients that of the numerator, which is minus the
    // value, or 4294967294 for 1.
    Place map;
    // Of quotients: the entry that divides, or 4294967295 for none.
    Place divisors;
    // A word that says whether all values are equal; 0 is always right.
    bool equality;
};

struct Scratch {
    std::uint64_t bytes;
    std::uint32_t fill;
};

struct Dense {
    std::uint64_t rows;
    std::uint64_t cols;
    Element element;
    bool row_major;
    std::uint32_t alignment;

    constexpr std::uint64_t elements() const { return rows * cols; }
    constexpr std::uint64_t bytes() const { return rows * cols * bytes_of(element); }
};

struct Member {
    const char* path;
    Place place;
    const char* sha256;
};

// Kernels of the bundle, a kernel of sparsetune's library on the CPU, or a routine of NVIDIA's libraries.
enum class Kind { kernels, host, cusparse, cublas };

struct Vendor {
    const char* version;
    const char* function;
    const char* algorithm;
    // Of a triangular solve.
    bool solves;
    bool lower;
    bool unit_diagonal;
    bool transpose;
};

// The kernels that put new values in place; none if the block is 0, and none for quotients if that symbol is empty.
struct Gather {
    Module module;
    const char* symbol;
    const char* quotients;
    unsigned block;
};

enum class CheckKind { product, equations };

// Inputs drawn from a seed, and sampled outputs with the bounds of their errors.
struct Check {
    CheckKind kind;
    std::uint64_t seed;
    double scale;
    const char* b_sha256;
    double alpha;
    double beta;
    std::uint64_t samples;
    // Of a product: places of C in memory and their values.
    Place index;
    Place value;
    Place bound;
    // Of equations; `value` are the coefficients.
    Place row;
    Place row_ptr;
    Place col;
    Place diagonal;
};

struct Description {
    const char* plan;
    const char* matrix;
    const char* problem;
    const char* candidate;
    std::uint64_t entries;
    Kind kind;
    const char* device;
    const char* compute_capability;
    unsigned multiprocessors;
    const char* driver;
    Dense b;
    Dense c;
    bool accumulate;
    Module module;
    Table<Step> steps;
    bool zero_output;
    std::uint64_t max_wait_ns;
    // Calls pass state on: captured ones use scratch memory of their own, which they fill themselves.
    bool refill;
    Table<Scratch> scratch;
    Table<Array> arrays;
    // New values are put in place one by one; otherwise sparsetune's library makes the arrays again.
    bool updatable;
    Gather gather;
    Vendor vendor;
    Check check;
    // Microseconds of a call when the plan was made; 0 if it was not measured.
    double measured_us;
    // How that was measured; empty if it is not known.
    const char* measured_by;
    Table<Member> members;
};

// The result of a check: the largest error of a sample as a share of its bound.
struct CheckReport {
    std::uint64_t samples;
    double worst;

    bool passed() const { return worst <= 1.0; }
};

// Microseconds of a call: on the device between two events (on the CPU by the clock), and on the host until it is queued; the
// same of the plan's launches without what surrounds them, where there are launches.
struct Timing {
    double call_us;
    double queue_us;
    double bare_call_us;
    double bare_queue_us;
};

}  // namespace sparsetune

#endif
