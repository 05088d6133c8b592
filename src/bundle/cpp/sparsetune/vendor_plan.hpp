// Plans that call a routine of cuSPARSE or cuBLAS, since it was the fastest. Functions and numbers are those of
// cusparse.h, cublas_api.h and library_types.h, which are not needed.
#ifndef SPARSETUNE_VENDOR_PLAN_HPP
#define SPARSETUNE_VENDOR_PLAN_HPP

#include "backend.hpp"

namespace sparsetune {

namespace detail {

// The routine of a plan, set up on its arrays.
class Routine {
public:
    Routine() = default;
    Routine(const Routine&) = delete;
    Routine& operator=(const Routine&) = delete;
    virtual ~Routine() = default;

    virtual void queue(const Call& call) = 0;
    // Takes in new values, which are in their array in the order of the stream. False if it must be set up again.
    virtual bool update(CUstream stream) = 0;
};

// The CSR operand of a plan: the arrays row_ptr, col_idx and values, in this order.
struct Operand {
    const Buffer* row_ptr;
    const Buffer* col_idx;
    const Buffer* values;
    std::uint64_t entries;
};

inline int data_type(Element type) {
    return type == Element::f16 ? 2 : type == Element::bf16 ? 14 : type == Element::f32 ? 0 : 1;
}

// The type of sums and factors.
inline int compute_type(Element type) { return type == Element::f64 ? 1 : 0; }

// alpha and beta in the type of the factors.
struct Factors {
    float single[2];
    double both[2];
    bool wide;

    Factors(double alpha, double beta, Element type)
        : single{static_cast<float>(alpha), static_cast<float>(beta)}, both{alpha, beta}, wide(type == Element::f64) {}

    const void* alpha() const { return wide ? static_cast<const void*>(&both[0]) : &single[0]; }
    const void* beta() const { return wide ? static_cast<const void*>(&both[1]) : &single[1]; }
};

// The operand on the host.
struct HostOperand {
    std::vector<std::uint32_t> row_ptr, col_idx;
    std::vector<unsigned char> values;
    // Of one value.
    std::size_t size;

    HostOperand(const Context& context, const Description& plan, const Operand& operand)
        : row_ptr(plan.c.rows + 1), col_idx(operand.entries), size(bytes_of(plan.b.element)) {
        values.resize(operand.entries * size);
        operand.row_ptr->read(row_ptr.data(), 4 * row_ptr.size(), context.stream);
        operand.col_idx->read(col_idx.data(), 4 * col_idx.size(), context.stream);
        operand.values->read(values.data(), values.size(), context.stream);
        for (std::uint64_t row = 0; row < plan.c.rows; ++row) {
            for (std::uint64_t at = row_ptr[row]; at < row_ptr[row + 1]; ++at) {
                if (at >= operand.entries || col_idx[at] >= plan.b.rows) {
                    throw Error("The arrays row_ptr and col_idx are no matrix of the plan's shape.");
                }
            }
        }
    }
};

// The matrix in square blocks (BSR): every block with an entry is stored whole, by rows, with zeros where there is none.
class Blocks {
public:
    Blocks(const Context& context, const Description& plan, const Operand& operand, std::uint32_t side)
        : context_(context), plan_(plan), operand_(operand), side_(side) {
        if (plan.c.rows % side != 0 || plan.b.rows % side != 0) {
            throw Error("The plan's matrix is not a multiple of the blocks of its algorithm.");
        }
        const HostOperand host(context, plan, operand);
        pointers_.push_back(0);
        std::vector<std::uint64_t> seen(plan.b.rows / side, ~std::uint64_t(0));
        for (std::uint64_t block = 0; block < plan.c.rows / side; ++block) {
            for (std::uint64_t row = block * side; row < (block + 1) * side; ++row) {
                for (std::uint64_t at = host.row_ptr[row]; at < host.row_ptr[row + 1]; ++at) {
                    const std::uint32_t column = host.col_idx[at] / side;
                    if (seen[column] != block) {
                        seen[column] = block;
                        columns_.push_back(column);
                    }
                }
            }
            std::sort(columns_.begin() + pointers_.back(), columns_.end());
            pointers_.push_back(static_cast<std::uint32_t>(columns_.size()));
        }
        row_ptr_ = std::make_unique<Buffer>(context, 4 * pointers_.size());
        col_idx_ = std::make_unique<Buffer>(context, 4 * columns_.size());
        values_ = std::make_unique<Buffer>(context, columns_.size() * side * side * host.size);
        row_ptr_->write(pointers_.data(), 4 * pointers_.size(), context.stream);
        col_idx_->write(columns_.data(), 4 * columns_.size(), context.stream);
        fill(host);
    }

    std::int64_t count() const { return static_cast<std::int64_t>(columns_.size()); }
    std::int64_t side() const { return side_; }
    const Buffer& row_ptr() const { return *row_ptr_; }
    const Buffer& col_idx() const { return *col_idx_; }
    const Buffer& values() const { return *values_; }

    // Takes in new values, into the same memory.
    void update() const { fill(HostOperand(context_, plan_, operand_)); }

private:
    void fill(const HostOperand& host) const {
        std::vector<unsigned char> elements(columns_.size() * side_ * side_ * host.size, 0);
        for (std::uint64_t row = 0; row < plan_.c.rows; ++row) {
            const auto first = columns_.begin() + pointers_[row / side_], last = columns_.begin() + pointers_[row / side_ + 1];
            for (std::uint64_t at = host.row_ptr[row]; at < host.row_ptr[row + 1]; ++at) {
                const auto place = std::lower_bound(first, last, host.col_idx[at] / side_) - columns_.begin();
                const std::uint64_t to =
                    (static_cast<std::uint64_t>(place) * side_ + row % side_) * side_ + host.col_idx[at] % side_;
                std::memcpy(elements.data() + to * host.size, host.values.data() + at * host.size, host.size);
            }
        }
        values_->write(elements.data(), elements.size(), context_.stream);
        context_.wait_for_all();
    }

    const Context& context_;
    const Description& plan_;
    Operand operand_;
    std::uint32_t side_;
    std::vector<std::uint32_t> pointers_, columns_;
    std::unique_ptr<Buffer> row_ptr_, col_idx_, values_;
};

class Cusparse : public Routine {
public:
    Cusparse(const Context& context, const Description& plan, const Operand& operand, std::vector<std::string>& warnings)
        : context_(context), plan_(plan), operand_(operand) {
        if (!library_.open()) {
            throw Unavailable(std::string("This plan calls ") + plan.vendor.function + " of cuSPARSE " +
                              plan.vendor.version + ", which is not installed: " + library_.reason() + ".");
        }
        version(warnings);
        check("cusparseCreate", library_.get<int(Handle*)>("cusparseCreate")(&handle_));
        try {
            set_stream(context.stream);
            describe();
            prepare();
            context.wait_for_all();
        } catch (...) {
            end();
            throw;
        }
    }

    ~Cusparse() override { end(); }

    void queue(const Call& call) override {
        set_stream(call.stream);
        aim(b_, call.b);
        aim(c_, call.c);
        const Factors factors(call.alpha, call.beta, plan_.b.element);
        if (multiplies_vector()) {
            check("cusparseSpMV",
                  spmv_(handle_, 0, factors.alpha(), a_, b_, factors.beta(), c_, compute(), algorithm_, workspace_->address()));
        } else if (!plan_.vendor.solves) {
            check("cusparseSpMM", spmm_(handle_, 0, 0, factors.alpha(), a_, b_, factors.beta(), c_, compute(), algorithm_,
                                        workspace_->address()));
            if (separator_ != nullptr) {
                separator_->fill(0, call.stream);
            }
        } else if (solves_vector()) {
            check("cusparseSpSV_solve",
                  solve_vector_(handle_, operation(), factors.alpha(), a_, b_, c_, data(), algorithm_, solve_));
        } else {
            check("cusparseSpSM_solve",
                  solve_matrix_(handle_, operation(), 0, factors.alpha(), a_, b_, c_, data(), 0, solve_));
        }
    }

    bool update(CUstream stream) override {
        if (!plan_.vendor.solves) {
            if (blocks_ != nullptr) {
                context_.wait_for_all();
                blocks_->update();
            }
            return true;
        }
        using Update = int(Handle, Handle, Address, int);
        const char* symbol = solves_vector() ? "cusparseSpSV_updateMatrix" : "cusparseSpSM_updateMatrix";
        Update* take = library_.find<Update>(symbol);
        if (take == nullptr) {
            return false;
        }
        set_stream(stream);
        const int all_values = 0;
        check(symbol, take(handle_, solve_, operand_.values->address(), all_values));
        return true;
    }

private:
    using Create = int(Handle*);
    using Destroy = int(Handle);
    using Spmm = int(Handle, int, int, const void*, Handle, Handle, const void*, Handle, int, int, Address);
    using SpmmSize = int(Handle, int, int, const void*, Handle, Handle, const void*, Handle, int, int, std::size_t*);
    using Spmv = int(Handle, int, const void*, Handle, Handle, const void*, Handle, int, int, Address);
    using SpmvSize = int(Handle, int, const void*, Handle, Handle, const void*, Handle, int, int, std::size_t*);
    using Vector = int(Handle, int, const void*, Handle, Handle, Handle, int, int, Handle);
    using VectorSize = int(Handle, int, const void*, Handle, Handle, Handle, int, int, Handle, std::size_t*);
    using VectorAnalysis = int(Handle, int, const void*, Handle, Handle, Handle, int, int, Handle, Address);
    using Matrix = int(Handle, int, int, const void*, Handle, Handle, Handle, int, int, Handle);
    using MatrixSize = int(Handle, int, int, const void*, Handle, Handle, Handle, int, int, Handle, std::size_t*);
    using MatrixAnalysis = int(Handle, int, int, const void*, Handle, Handle, Handle, int, int, Handle, Address);

    // The algorithm of SpSV; -1 if the routine is another.
    int vector_solve() const {
        const std::string name = plan_.vendor.algorithm;
        return name == "spsv" ? 0 : name == "spsv_alg1" ? 1 : name == "spsv_alg2" ? 2 : -1;
    }
    bool solves_vector() const { return vector_solve() >= 0; }
    bool multiplies_vector() const { return std::strncmp(plan_.vendor.algorithm, "spmv_", 5) == 0; }
    bool vector() const { return solves_vector() || multiplies_vector(); }
    // Rows and columns of the blocks in which the routine takes the matrix; 0 if it takes it by rows.
    std::uint32_t side() const {
        const char* name = plan_.vendor.algorithm;
        const long side = std::strncmp(name, "bsr", 3) == 0 ? std::strtol(name + 3, nullptr, 10) : 0;
        return side > 0 && side <= 1024 ? static_cast<std::uint32_t>(side) : 0;
    }
    int operation() const { return plan_.vendor.transpose ? 1 : 0; }
    int data() const { return data_type(plan_.b.element); }
    int compute() const { return compute_type(plan_.b.element); }

    void version(std::vector<std::string>& warnings) {
        const auto property = library_.get<int(int, int*)>("cusparseGetProperty");
        for (int part = 0; part < 3; ++part) {
            int value = 0;
            property(part, &value);
            installed_ += (part > 0 ? "." : "") + std::to_string(value);
        }
        if (std::string(plan_.vendor.version).find(installed_) == std::string::npos) {
            warnings.push_back(std::string("This plan was measured with cuSPARSE ") + plan_.vendor.version + "; " +
                               installed_ + " is installed.");
        }
    }

    void check(const char* call, int status) const {
        if (status != 0) {
            throw Error(std::string(call) + " of cuSPARSE " + installed_ + " answered with status " +
                        std::to_string(status) + "; the plan was measured with " + plan_.vendor.version + ".");
        }
    }

    void set_stream(CUstream stream) const { check("cusparseSetStream", set_stream_(handle_, stream)); }

    void aim(Handle dense, Address address) const {
        check(vector() ? "cusparseDnVecSetValues" : "cusparseDnMatSetValues", set_values_(dense, address));
    }

    Handle dense(const Dense& shape, Address address) const {
        Handle made = nullptr;
        const auto rows = static_cast<std::int64_t>(shape.rows), cols = static_cast<std::int64_t>(shape.cols);
        const int type = data_type(shape.element);
        if (vector()) {
            using Make = int(Handle*, std::int64_t, Address, int);
            check("cusparseCreateDnVec", library_.get<Make>("cusparseCreateDnVec")(&made, rows, address, type));
            return made;
        }
        using Make = int(Handle*, std::int64_t, std::int64_t, std::int64_t, Address, int, int);
        const int by_columns = 1, by_rows = 2;
        check("cusparseCreateDnMat",
              library_.get<Make>("cusparseCreateDnMat")(&made, rows, cols, shape.row_major ? cols : rows, address, type,
                                                        shape.row_major ? by_rows : by_columns));
        return made;
    }

    void describe() {
        const auto rows = static_cast<std::int64_t>(plan_.c.rows), cols = static_cast<std::int64_t>(plan_.b.rows);
        const int index_32 = 2, from_zero = 0, by_rows = 2;
        if (const std::uint32_t side = plan_.vendor.solves ? 0 : this->side()) {
            using Make = int(Handle*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, Address, Address,
                             Address, int, int, int, int, int);
            blocks_ = std::make_unique<Blocks>(context_, plan_, operand_, side);
            check("cusparseCreateBsr",
                  library_.get<Make>("cusparseCreateBsr")(
                      &a_, rows / side, cols / side, blocks_->count(), side, side, blocks_->row_ptr().address(),
                      blocks_->col_idx().address(), blocks_->values().address(), index_32, index_32, from_zero, data(), by_rows));
        } else {
            using Make =
                int(Handle*, std::int64_t, std::int64_t, std::int64_t, Address, Address, Address, int, int, int, int);
            check("cusparseCreateCsr",
                  library_.get<Make>("cusparseCreateCsr")(
                      &a_, rows, cols, static_cast<std::int64_t>(operand_.entries), operand_.row_ptr->address(),
                      operand_.col_idx->address(), operand_.values->address(), index_32, index_32, from_zero, data()));
        }
        if (plan_.vendor.solves) {
            using Set = int(Handle, int, const void*, std::size_t);
            Set* set = library_.get<Set>("cusparseSpMatSetAttribute");
            const int fill = plan_.vendor.lower ? 0 : 1, diagonal = plan_.vendor.unit_diagonal ? 1 : 0;
            check("cusparseSpMatSetAttribute", set(a_, 0, &fill, sizeof fill));
            check("cusparseSpMatSetAttribute", set(a_, 1, &diagonal, sizeof diagonal));
            Create* create = library_.get<Create>(solves_vector() ? "cusparseSpSV_createDescr" : "cusparseSpSM_createDescr");
            check("cusparse createDescr", create(&solve_));
        }
        set_values_ = library_.get<int(Handle, Address)>(vector() ? "cusparseDnVecSetValues" : "cusparseDnMatSetValues");
    }

    void prepare() {
        // Preparation may read the dense operands, which only a call has.
        const Buffer b(context_, plan_.b.bytes()), c(context_, plan_.c.bytes());
        b.fill(0, context_.stream);
        c.fill(0, context_.stream);
        b_ = dense(plan_.b, b.address());
        c_ = dense(plan_.c, c.address());
        const Factors factors(1.0, plan_.accumulate ? 1.0 : 0.0, plan_.b.element);
        const void* one = factors.alpha();
        std::size_t bytes = 0;
        const std::string name = plan_.vendor.algorithm;
        if (multiplies_vector()) {
            algorithm_ = name == "spmv_alg1" ? 2 : name == "spmv_alg2" ? 3 : 0;
            if (algorithm_ == 0 || plan_.b.cols != 1) {
                throw Error("This loader does not know the algorithm " + name + " of cuSPARSE for this plan.");
            }
            check("cusparseSpMV_bufferSize",
                  library_.get<SpmvSize>("cusparseSpMV_bufferSize")(handle_, 0, one, a_, b_, factors.beta(), c_, compute(),
                                                                    algorithm_, &bytes));
            workspace_ = std::make_unique<Buffer>(context_, bytes);
            // Versions before 12.4 have no preprocessing.
            if (Spmv* preprocess = library_.find<Spmv>("cusparseSpMV_preprocess")) {
                check("cusparseSpMV_preprocess", preprocess(handle_, 0, one, a_, b_, factors.beta(), c_, compute(),
                                                            algorithm_, workspace_->address()));
            }
            spmv_ = library_.get<Spmv>("cusparseSpMV");
        } else if (!plan_.vendor.solves) {
            algorithm_ = name == "csr_alg1"   ? 4
                         : name == "csr_alg2" ? 6
                         : name == "csr_alg3" ? 12
                         : side() > 0         ? 14
                                              : 0;
            if (algorithm_ == 0 && name != "default") {
                throw Error("This loader does not know the algorithm " + name + " of cuSPARSE.");
            }
            check("cusparseSpMM_bufferSize",
                  library_.get<SpmmSize>("cusparseSpMM_bufferSize")(handle_, 0, 0, one, a_, b_, factors.beta(), c_,
                                                                    compute(), algorithm_, &bytes));
            workspace_ = std::make_unique<Buffer>(context_, bytes);
            // It is for compressed rows alone, and optional.
            if (blocks_ == nullptr) {
                check("cusparseSpMM_preprocess",
                      library_.get<Spmm>("cusparseSpMM_preprocess")(handle_, 0, 0, one, a_, b_, factors.beta(), c_,
                                                                    compute(), algorithm_, workspace_->address()));
            }
            spmm_ = library_.get<Spmm>("cusparseSpMM");
            if (algorithm_ == 12 || algorithm_ == 0) {
                separator_ = std::make_unique<Buffer>(context_, 4);
            }
        } else if (solves_vector()) {
            algorithm_ = vector_solve();
            check("cusparseSpSV_bufferSize",
                  library_.get<VectorSize>("cusparseSpSV_bufferSize")(handle_, operation(), one, a_, b_, c_, data(),
                                                                      algorithm_, solve_, &bytes));
            workspace_ = std::make_unique<Buffer>(context_, bytes);
            check("cusparseSpSV_analysis",
                  library_.get<VectorAnalysis>("cusparseSpSV_analysis")(handle_, operation(), one, a_, b_, c_, data(),
                                                                        algorithm_, solve_, workspace_->address()));
            solve_vector_ = library_.get<Vector>("cusparseSpSV_solve");
        } else if (std::string(plan_.vendor.algorithm) == "spsm") {
            check("cusparseSpSM_bufferSize",
                  library_.get<MatrixSize>("cusparseSpSM_bufferSize")(handle_, operation(), 0, one, a_, b_, c_, data(), 0,
                                                                      solve_, &bytes));
            workspace_ = std::make_unique<Buffer>(context_, bytes);
            check("cusparseSpSM_analysis",
                  library_.get<MatrixAnalysis>("cusparseSpSM_analysis")(handle_, operation(), 0, one, a_, b_, c_, data(),
                                                                        0, solve_, workspace_->address()));
            solve_matrix_ = library_.get<Matrix>("cusparseSpSM_solve");
        } else {
            throw Error(std::string("This loader does not know the algorithm ") + plan_.vendor.algorithm +
                        " of cuSPARSE.");
        }
        context_.wait_for_all();
    }

    void end() {
        const auto destroy = [this](const char* symbol, Handle handle) {
            Destroy* function = handle != nullptr ? library_.find<Destroy>(symbol) : nullptr;
            if (function != nullptr) {
                function(handle);
            }
        };
        const char* dense = vector() ? "cusparseDestroyDnVec" : "cusparseDestroyDnMat";
        destroy(solves_vector() ? "cusparseSpSV_destroyDescr" : "cusparseSpSM_destroyDescr", solve_);
        destroy(dense, c_);
        destroy(dense, b_);
        destroy("cusparseDestroySpMat", a_);
        destroy("cusparseDestroy", handle_);
    }

    Library library_{"libcusparse.so.12", "libcusparse.so.13", "libcusparse.so.11", "libcusparse.so"};
    const Context& context_;
    const Description& plan_;
    Operand operand_;
    std::string installed_;
    Handle handle_ = nullptr, a_ = nullptr, b_ = nullptr, c_ = nullptr, solve_ = nullptr;
    std::unique_ptr<Buffer> workspace_;
    int algorithm_ = 0;
    int (*set_stream_)(Handle, CUstream) =
        library_.open() ? library_.get<int(Handle, CUstream)>("cusparseSetStream") : nullptr;
    int (*set_values_)(Handle, Address) = nullptr;
    std::unique_ptr<Blocks> blocks_;
    Spmm* spmm_ = nullptr;
    // A word that is filled after each call: in some versions, calls of this algorithm that follow each other do not wait
    // for each other, and the second reads what the first has not yet written.
    std::unique_ptr<Buffer> separator_;
    Spmv* spmv_ = nullptr;
    Vector* solve_vector_ = nullptr;
    Matrix* solve_matrix_ = nullptr;
};

// The matrix made dense on the host, then multiplied by cuBLAS.
class Cublas : public Routine {
public:
    Cublas(const Context& context, const Description& plan, const Operand& operand, std::vector<std::string>&)
        : context_(context), plan_(plan), operand_(operand), leading_(padded(plan)) {
        if (!library_.open()) {
            throw Unavailable(std::string("This plan calls ") + plan.vendor.function + " of cuBLAS " +
                              plan.vendor.version + ", which is not installed: " + library_.reason() + ".");
        }
        dense_ = std::make_unique<Buffer>(context, plan.c.rows * leading_ * bytes_of(plan.b.element));
        check("cublasCreate", library_.get<int(Handle*)>("cublasCreate_v2")(&handle_));
        // Sums of 16 bits must not be taken in 16 bits.
        const int mode = 16;
        check("cublasSetMathMode", library_.get<int(Handle, int)>("cublasSetMathMode")(handle_, mode));
        scatter();
    }

    ~Cublas() override {
        const auto destroy = handle_ != nullptr ? library_.find<int(Handle)>("cublasDestroy_v2") : nullptr;
        if (destroy != nullptr) {
            destroy(handle_);
        }
    }

    void queue(const Call& call) override {
        check("cublasSetStream", set_stream_(handle_, call.stream));
        const Factors factors(call.alpha, call.beta, plan_.b.element);
        const int type = data_type(plan_.b.element), result = data_type(plan_.c.element), any = -1;
        const bool tf32 = std::strcmp(plan_.vendor.algorithm, "cublas_dense_tf32") == 0;
        const int compute = plan_.b.element == Element::f64 ? 70 : tf32 ? 77 : 68;
        const int rows = static_cast<int>(plan_.c.rows), cols = static_cast<int>(plan_.b.rows),
                  n = static_cast<int>(plan_.b.cols), leading = static_cast<int>(leading_);
        // The library counts by columns: there the dense matrix is its own transpose, and so are B and C by rows.
        const int status = plan_.b.row_major
                               ? gemm_(handle_, 0, 0, n, rows, cols, factors.alpha(), call.b, type, n, dense_->address(),
                                       type, leading, factors.beta(), call.c, result, n, compute, any)
                               : gemm_(handle_, 1, 0, rows, n, cols, factors.alpha(), dense_->address(), type, leading,
                                       call.b, type, cols, factors.beta(), call.c, result, rows, compute, any);
        check("cublasGemmEx", status);
    }

    bool update(CUstream) override {
        context_.wait_for_all();
        scatter();
        return true;
    }

private:
    using Gemm = int(Handle, int, int, int, int, int, const void*, Address, int, int, Address, int, int, const void*,
                     Address, int, int, int, int);

    // Rows begin at multiples of 16 bytes.
    static std::uint64_t padded(const Description& plan) {
        const std::uint64_t each = 16 / bytes_of(plan.b.element);
        return (plan.b.rows + each - 1) / each * each;
    }

    void check(const char* call, int status) const {
        if (status != 0) {
            throw Error(std::string(call) + " answered with status " + std::to_string(status) +
                        "; the plan was measured with cuBLAS " + plan_.vendor.version + ".");
        }
    }

    void scatter() const {
        const HostOperand host(context_, plan_, operand_);
        std::vector<unsigned char> dense(plan_.c.rows * leading_ * host.size, 0);
        for (std::uint64_t row = 0; row < plan_.c.rows; ++row) {
            for (std::uint64_t at = host.row_ptr[row]; at < host.row_ptr[row + 1]; ++at) {
                std::memcpy(dense.data() + (row * leading_ + host.col_idx[at]) * host.size,
                            host.values.data() + at * host.size, host.size);
            }
        }
        dense_->write(dense.data(), dense.size(), context_.stream);
        context_.wait_for_all();
    }

    Library library_{"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"};
    const Context& context_;
    const Description& plan_;
    Operand operand_;
    std::uint64_t leading_;
    Handle handle_ = nullptr;
    std::unique_ptr<Buffer> dense_;
    int (*set_stream_)(Handle, CUstream) =
        library_.open() ? library_.get<int(Handle, CUstream)>("cublasSetStream_v2") : nullptr;
    Gemm* gemm_ = library_.open() ? library_.get<Gemm>("cublasGemmEx") : nullptr;
};

class VendorPlan : public OnDevice {
public:
    VendorPlan(const Description& plan, const File& file, int ordinal, std::vector<std::string>& warnings)
        : OnDevice(plan, file, ordinal, warnings), warnings_(warnings) {
        const Context::Entered entered(context_);
        const Relaxed relaxed(driver_);
        try {
            require_matrix(plan, file);
            arrays_ = std::make_unique<Arrays>(context_, file, plan, std::vector<bool>(plan.arrays.count, true), warnings);
            context_.wait_for_all();
            set_up();
        } catch (...) {
            free();
            throw;
        }
    }

    ~VendorPlan() override {
        try {
            const Context::Entered entered(context_);
            const Relaxed relaxed(driver_);
            free();
        } catch (const Error&) {
            // The context is lost, with all its memory.
        }
    }

protected:
    void queue(const Call& call) override { routine_->queue(call); }

    bool waits_for_values() const override { return plan_.vendor.solves || plan_.kind == Kind::cublas || !routine_; }

    void took_values(CUstream stream) override {
        if (!routine_ || !routine_->update(stream)) {
            context_.wait_for_all();
            set_up();
        }
    }

private:
    // Does nothing while values are missing.
    void set_up() {
        if (!arrays_->complete()) {
            return;
        }
        routine_.reset();
        const Buffer* found[3] = {};
        const char* names[3] = {"row_ptr", "col_idx", "values"};
        std::uint64_t entries = 0;
        for (std::size_t at = 0; at < plan_.arrays.count; ++at) {
            for (int which = 0; which < 3; ++which) {
                if (std::string(plan_.arrays[at].name) == names[which]) {
                    found[which] = &arrays_->buffer(at);
                    entries = which == 1 ? plan_.arrays[at].length : entries;
                }
            }
        }
        if (found[0] == nullptr || found[1] == nullptr || found[2] == nullptr) {
            throw Error("The plan lacks one of the arrays row_ptr, col_idx and values.");
        }
        const Operand operand = {found[0], found[1], found[2], entries};
        if (plan_.kind == Kind::cublas) {
            routine_ = std::make_unique<Cublas>(context_, plan_, operand, warnings_);
        } else {
            routine_ = std::make_unique<Cusparse>(context_, plan_, operand, warnings_);
        }
    }

    void free() {
        context_.settle();
        routine_.reset();
        release();
    }

    std::vector<std::string>& warnings_;
    std::unique_ptr<Routine> routine_;
};

}  // namespace detail

}  // namespace sparsetune

#endif
