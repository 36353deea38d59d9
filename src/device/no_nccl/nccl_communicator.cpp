// Of a build without NCCL: nobody gets as far as a communicator.
#include "hat/device/nccl_communicator.hpp"

#include "hat/core/error.hpp"

namespace hat {

struct NcclAllReduce::Bucket {};
struct NcclCommunicator::Impl {};

std::string nccl_version() { return ""; }

namespace {
[[noreturn]] void refuse() { throw Error("this build has no NCCL"); }
}  // namespace

bool NcclAllReduce::step() { refuse(); }
bool NcclAllReduce::gathering() const { refuse(); }

int64_t NcclCommunicator::device_bytes() { return 0; }
std::string NcclCommunicator::make_id() { refuse(); }
NcclCommunicator::NcclCommunicator(const std::string& /*id*/, int /*size*/, int /*rank*/, const Device& /*device*/,
                                   double /*timeout_s*/, const std::function<void()>& /*look*/) {
  refuse();
}
NcclCommunicator::~NcclCommunicator() = default;
int NcclCommunicator::size() const { refuse(); }
int NcclCommunicator::rank() const { refuse(); }
// NOLINTNEXTLINE(performance-unnecessary-value-param): as those who can
NcclAllReduce NcclCommunicator::start(std::span<float> /*data*/, Event /*computed*/, InBucket /*place*/) { refuse(); }
void NcclCommunicator::abort() { refuse(); }

}  // namespace hat
