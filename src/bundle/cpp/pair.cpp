// Checks both plans of the pair against the samples in their bundles, and runs them by one call.
//
//     ./check [FIRST SECOND] [DEVICE]
//
// Ends with 0 if the results are right, 1 if one is wrong or something fails, and 2 if this machine cannot run the plans.
#include "plan.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

void check(const char* which, const sparsetune::Plan& plan) {
    std::printf("%s\n", which);
    std::printf("plan       %s\n", plan.description().plan);
    std::printf("problem    %s\n", plan.description().problem);
    std::printf("winner     %s\n", plan.description().candidate);
    for (const std::string& warning : plan.warnings()) {
        std::printf("warning    %s\n", warning.c_str());
    }
    const sparsetune::CheckReport report = plan.check();
    std::printf("samples    %llu\n", static_cast<unsigned long long>(report.samples));
    std::printf("error      %.3g of its bound\n", report.worst);
    if (!report.passed()) {
        throw sparsetune::Error("The result is wrong.");
    }
    std::printf("call       %.2f us\n", plan.measure(100).call_us);
}

void run(const std::string& first, const std::string& second, int device) {
    sparsetune::Pair pair(sparsetune_first::description, first, sparsetune_second::description, second, device);
    check("first", pair.first());
    check("second", pair.second());
    const double differs = pair.differs();
    std::printf("both\n");
    std::printf("error      %.3g of what rounding may be\n", differs);
    // Also what is not a number.
    if (!(differs <= 1.0)) {
        throw sparsetune::Error("The result of both is wrong.");
    }
}

}  // namespace

int main(int count, char** words) {
    const bool named = count > 2;
    const std::string first = named ? words[1] : sparsetune_first::bundle;
    const std::string second = named ? words[2] : sparsetune_second::bundle;
    try {
        run(first, second, count > 3 ? std::atoi(words[3]) : 0);
    } catch (const sparsetune::Unavailable& error) {
        std::fflush(stdout);
        std::fprintf(stderr, "%s\n", error.what());
        return 2;
    } catch (const std::exception& error) {
        std::fflush(stdout);
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    return 0;
}
