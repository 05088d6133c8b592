// Checks the plan against the sample in its bundle, and times it.
//
//     ./check [BUNDLE] [DEVICE]
//
// Ends with 0 if the result is right, 1 if it is wrong or something fails, and 2 if this machine cannot run the plan.
#include "plan.hpp"

#include <cstdio>
#include <cstdlib>

namespace {

void run(const std::string& path, int device) {
    const sparsetune::Description& description = sparsetune_plan::description;
    std::printf("plan       %s\n", description.plan);
    std::printf("problem    %s\n", description.problem);
    std::printf("winner     %s\n", description.candidate);
    std::printf("made on    %s\n", description.device);
    const sparsetune::Plan plan(description, path, device);
    for (const std::string& warning : plan.warnings()) {
        std::printf("warning    %s\n", warning.c_str());
    }
    const sparsetune::CheckReport report = plan.check();
    std::printf("samples    %llu\n", static_cast<unsigned long long>(report.samples));
    std::printf("error      %.3g of its bound\n", report.worst);
    if (!report.passed()) {
        throw sparsetune::Error("The result is wrong.");
    }
    const sparsetune::Timing timing = plan.measure(100);
    std::printf("call       %.2f us\n", timing.call_us);
    if (description.measured_us > 0.0) {
        const bool told = description.measured_by[0] != '\0';
        std::printf("promised   %.2f us%s%s\n", description.measured_us, told ? ", " : "", description.measured_by);
    }
    if (timing.queue_us > 0.0) {
        std::printf("queued in  %.2f us\n", timing.queue_us);
    }
    if (timing.bare_queue_us > 0.0) {
        std::printf("bare       %.2f us, queued in %.2f us\n", timing.bare_call_us, timing.bare_queue_us);
    }
}

}  // namespace

int main(int count, char** words) {
    const std::string path = count > 1 ? words[1] : sparsetune_plan::bundle;
    try {
        run(path, count > 2 ? std::atoi(words[2]) : 0);
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
