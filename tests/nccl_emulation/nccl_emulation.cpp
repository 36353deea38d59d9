// NCCL over MPI, for tests: the functions that HAT uses, on the memory of the emulated devices (tests/cuda_emulation).
//
// What is faithful, because code could rely on it by mistake:
//   - Sums run in their stream: they read what is in memory when the stream gets to them, and nobody reads a sum
//   before.
//   - A communicator that does not block answers ncclInProgress, and what was asked for gets into the stream only when
//     ncclCommGetAsyncError has said ncclSuccess; meanwhile nothing else may be asked of it.
//   - Calls match by their order. Where ranks disagree about what a call is, NCCL hangs or adds up the wrong things;
//   here
//     it is an error of the communicator.
//   - Abort needs nobody else, and frees the stream of what waits for others.
//   - A communicator that was aborted or destroyed is none any more: ncclInvalidArgument.
// A group that is not ended shows at the next question of the state: ncclInvalidUsage.
#include <mpi.h>
#include <nccl.h>

#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kPollsUntilThrough = 2;
constexpr int kFirstTag = 1 << 20;  // in MPI_COMM_WORLD, which HAT itself uses for nothing but splitting
constexpr int kTagsOfOne = 4;

struct Name {
  int root_in_world;
  int first_tag;
};

/// Of every message of a sum: what the sender takes the call for.
struct CallHeader {
  int64_t call;      // of the communicator
  int64_t elements;  // of all its sums together
  int64_t sums;
  bool operator==(const CallHeader&) const = default;
};

struct Sum {
  const float* send;
  float* receive;
  size_t count;
  cudaStream_t stream;
};

/// A call under way in its stream: everybody's values to everybody, then added up in the order of the ranks.
struct Call {
  bool is_started = false;
  CallHeader header{};
  std::vector<Sum> sums;
  std::vector<MPI_Request> requests;
  std::vector<std::vector<unsigned char>> of_rank;  // header and values
};

std::string last_error;
int open_groups = 0;

}  // namespace

struct ncclComm {
  enum class State { joining, alive, leaving, left, aborted };
  State state = State::joining;
  Name name{};
  int size = 0;
  int rank = 0;
  bool blocks = true;
  std::vector<int> world_ranks;  // by rank, -1: not heard of
  std::vector<MPI_Request> requests;
  int to_hear_of = 0;
  ncclResult_t error = ncclSuccess;
  int polls_left = 0;  // until the call made last is through
  int64_t calls = 0;
  std::vector<std::pair<cudaStream_t, std::shared_ptr<Call>>> not_in_stream;
  std::vector<std::shared_ptr<Call>> under_way;
  int device = 0;
  int begun = 0;  // calls that have not ended
};

namespace {

std::set<ncclComm_t> alive;                  // what ncclCommInitRankConfig made and nobody ended
std::vector<std::unique_ptr<ncclComm>> all;  // nothing is freed: works in streams and MPI refer to them
std::vector<std::pair<ncclComm_t, Sum>> of_group;

ncclResult_t refuse(ncclResult_t result, std::string why) {
  last_error = std::move(why);
  return result;
}

ncclResult_t fail(ncclComm& comm, ncclResult_t result, std::string why) {
  comm.error = result;
  return refuse(result, std::move(why));
}

bool all_through(std::vector<MPI_Request>& requests) {
  int done = 0;
  MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
  return done != 0;
}

/// Rank 0 hears of everybody, and tells everybody who is who.
void advance_joining(ncclComm& comm) {
  if (comm.rank == 0) {
    while (comm.to_hear_of > 0) {
      int found = 0;
      MPI_Status status;
      MPI_Iprobe(MPI_ANY_SOURCE, comm.name.first_tag, MPI_COMM_WORLD, &found, &status);
      if (found == 0) return;
      int rank = 0;
      MPI_Recv(&rank, 1, MPI_INT, status.MPI_SOURCE, comm.name.first_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      if (std::exchange(comm.world_ranks[static_cast<size_t>(rank)], status.MPI_SOURCE) >= 0) continue;  // tries again
      if (--comm.to_hear_of > 0) continue;
      for (int to = 1; to < comm.size; ++to) {
        MPI_Isend(comm.world_ranks.data(), comm.size, MPI_INT, comm.world_ranks[static_cast<size_t>(to)],
                  comm.name.first_tag + 1, MPI_COMM_WORLD, &comm.requests.emplace_back());
      }
    }
  }
  if (all_through(comm.requests)) comm.state = ncclComm::State::alive;
}

void start(ncclComm& comm, Call& call) {
  call.is_started = true;
  const size_t bytes = sizeof(CallHeader) + static_cast<size_t>(call.header.elements) * sizeof(float);
  call.of_rank.assign(static_cast<size_t>(comm.size), std::vector<unsigned char>(bytes));
  unsigned char* own = call.of_rank[static_cast<size_t>(comm.rank)].data();
  std::memcpy(own, &call.header, sizeof call.header);
  own += sizeof call.header;
  for (const Sum& sum : call.sums) {
    std::memcpy(own, sum.send, sum.count * sizeof(float));
    own += sum.count * sizeof(float);
  }
  for (int other = 0; other < comm.size; ++other) {
    if (other == comm.rank) continue;
    std::vector<unsigned char>& memory = call.of_rank[static_cast<size_t>(other)];
    memory.resize(bytes + 1);  // whoever sends more than is expected is told so, and not by MPI
    const int world = comm.world_ranks[static_cast<size_t>(other)];
    MPI_Irecv(memory.data(), static_cast<int>(memory.size()), MPI_BYTE, world, comm.name.first_tag + 2, MPI_COMM_WORLD,
              &call.requests.emplace_back());
    MPI_Isend(call.of_rank[static_cast<size_t>(comm.rank)].data(), static_cast<int>(bytes), MPI_BYTE, world,
              comm.name.first_tag + 2, MPI_COMM_WORLD, &call.requests.emplace_back());
  }
}

void add_up(ncclComm& comm, Call& call) {
  for (const std::vector<unsigned char>& memory : call.of_rank) {
    CallHeader header{};
    std::memcpy(&header, memory.data(), sizeof header);
    if (header == call.header) continue;
    fail(comm, ncclInvalidUsage,
         "call " + std::to_string(call.header.call) + " is " + std::to_string(call.header.sums) + " sums of " +
             std::to_string(call.header.elements) + " elements on rank " + std::to_string(comm.rank) + ", and call " +
             std::to_string(header.call) + " with " + std::to_string(header.sums) + " of " +
             std::to_string(header.elements) + " on another");
    return;
  }
  size_t at = sizeof(CallHeader);
  for (const Sum& sum : call.sums) {
    std::vector<float> total(sum.count, 0.0F);
    std::vector<float> values(sum.count);
    for (const std::vector<unsigned char>& memory : call.of_rank) {
      std::memcpy(values.data(), memory.data() + at, sum.count * sizeof(float));
      for (size_t i = 0; i < sum.count; ++i) total[i] += values[i];
    }
    std::memcpy(sum.receive, total.data(), sum.count * sizeof(float));
    at += sum.count * sizeof(float);
  }
}

void end_calls(ncclComm& comm, int number) {
  comm.begun -= number;
  cuda_emulation::add_sums_under_way(-number);
}

/// In the stream. Ranks that never come leave it there until the communicator is aborted.
bool advance(ncclComm& comm, const std::shared_ptr<Call>& call) {
  if (comm.state == ncclComm::State::aborted || comm.error != ncclSuccess) {
    end_calls(comm, comm.begun);
    return true;
  }
  if (!call->is_started) start(comm, *call);
  if (!all_through(call->requests)) return false;
  add_up(comm, *call);
  std::erase(comm.under_way, call);
  end_calls(comm, 1);
  return true;
}

void put_into_stream(ncclComm& comm) {
  for (auto& [stream, call] : std::exchange(comm.not_in_stream, {})) {
    comm.under_way.push_back(call);
    cuda_emulation::enqueue_polled(stream, [&comm, call = call] { return advance(comm, call); });
  }
}

ncclResult_t make_call(ncclComm& comm, std::vector<Sum> sums) {
  auto call = std::make_shared<Call>();
  call->header = {.call = comm.calls++, .elements = 0, .sums = static_cast<int64_t>(sums.size())};
  for (const Sum& sum : sums) call->header.elements += static_cast<int64_t>(sum.count);
  const cudaStream_t stream = sums.front().stream;
  call->sums = std::move(sums);
  comm.not_in_stream.emplace_back(stream, std::move(call));
  ++comm.begun;
  cuda_emulation::add_sums_under_way(1);
  if (comm.blocks) {
    put_into_stream(comm);
    return ncclSuccess;
  }
  comm.polls_left = kPollsUntilThrough;
  return ncclInProgress;
}

/// Why nothing may be asked of the communicator; empty: it may.
std::string problem_of(ncclComm_t comm) {
  if (!alive.contains(comm)) return "the communicator was aborted, destroyed or never made";
  if (comm->state == ncclComm::State::joining) return "the communicator is not there yet";
  if (comm->state != ncclComm::State::alive) return "the communicator is being left";
  if (comm->polls_left > 0) return "the call before is still in progress";
  return "";
}

}  // namespace

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int made = 0;
  Name name{};
  MPI_Comm_rank(MPI_COMM_WORLD, &name.root_in_world);
  name.first_tag = kFirstTag + kTagsOfOne * (name.root_in_world + 4096 * made++);
  std::memset(id->internal, 0, sizeof id->internal);
  std::memcpy(id->internal, &name, sizeof name);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  *comm = nullptr;
  if (rank < 0 || rank >= ranks) return refuse(ncclInvalidArgument, "no such rank");
  all.push_back(std::make_unique<ncclComm>());
  ncclComm& made = *all.back();
  std::memcpy(&made.name, id.internal, sizeof made.name);
  made.size = ranks;
  made.rank = rank;
  made.blocks = config == nullptr || config->blocking != 0;
  cudaGetDevice(&made.device);
  made.world_ranks.assign(static_cast<size_t>(ranks), -1);
  if (rank == 0) {
    MPI_Comm_rank(MPI_COMM_WORLD, &made.world_ranks[0]);
    made.to_hear_of = ranks - 1;
  } else {
    MPI_Isend(&made.rank, 1, MPI_INT, made.name.root_in_world, made.name.first_tag, MPI_COMM_WORLD,
              &made.requests.emplace_back());
    MPI_Irecv(made.world_ranks.data(), ranks, MPI_INT, made.name.root_in_world, made.name.first_tag + 1, MPI_COMM_WORLD,
              &made.requests.emplace_back());
  }
  *comm = &made;
  alive.insert(&made);
  while (made.blocks && made.state == ncclComm::State::joining) advance_joining(made);
  return made.blocks ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (!alive.contains(comm)) return refuse(ncclInvalidArgument, problem_of(comm));
  if (open_groups > 0) return refuse(ncclInvalidUsage, "a group was begun and not ended");
  if (comm->state == ncclComm::State::joining) advance_joining(*comm);
  if (comm->polls_left > 0 && --comm->polls_left == 0) put_into_stream(*comm);
  if (comm->state == ncclComm::State::leaving && comm->under_way.empty()) comm->state = ncclComm::State::left;
  const bool is_through =
      comm->state != ncclComm::State::joining && comm->state != ncclComm::State::leaving && comm->polls_left == 0;
  *error = comm->error != ncclSuccess ? comm->error : is_through ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream) {
  if (const std::string problem = problem_of(comm); !problem.empty()) {
    return refuse(alive.contains(comm) ? ncclInvalidUsage : ncclInvalidArgument, problem);
  }
  if (type != ncclFloat32 || operation != ncclSum) return refuse(ncclInvalidArgument, "only sums of fp32 are emulated");
  if (send == nullptr || receive == nullptr || count == 0) return refuse(ncclInvalidArgument, "nothing to sum");
  if (cuda_emulation::device_of(stream) != comm->device) {
    return refuse(ncclInvalidArgument, "a stream of another device than the communicator's");
  }
  const Sum sum{static_cast<const float*>(send), static_cast<float*>(receive), count, stream};
  if (open_groups == 0) return make_call(*comm, {sum});
  of_group.emplace_back(comm, sum);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++open_groups;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (open_groups == 0) return refuse(ncclInvalidUsage, "no group was begun");
  if (--open_groups > 0 || of_group.empty()) return ncclSuccess;
  std::vector<Sum> sums;
  ncclComm_t comm = of_group.front().first;
  for (const auto& [of, sum] : std::exchange(of_group, {})) {
    if (of != comm) return refuse(ncclInvalidUsage, "groups of several communicators are not emulated");
    sums.push_back(sum);
  }
  return make_call(*comm, std::move(sums));
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (const std::string problem = problem_of(comm); !problem.empty()) return refuse(ncclInvalidArgument, problem);
  if (open_groups > 0) return refuse(ncclInvalidUsage, "a group was begun and not ended");
  comm->state = ncclComm::State::leaving;
  return comm->blocks ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (!alive.contains(comm)) return refuse(ncclInvalidArgument, problem_of(comm));
  alive.erase(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (!alive.contains(comm)) return refuse(ncclInvalidArgument, problem_of(comm));
  comm->state = ncclComm::State::aborted;
  end_calls(*comm, comm->begun);
  alive.erase(comm);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

const char* ncclGetLastError(ncclComm_t /*comm*/) { return last_error.c_str(); }
