// compare_runs [--tolerance <t>] [--start <checkpoint>] [--except <end of name>] <checkpoint> <checkpoint>
//
// Compares the tensors of two checkpoints (or of the newest checkpoints of two runs), each found by CheckpointReader.
// Without --tolerance every bit of every tensor, the position and the versions of the blocks must be equal. With it,
// |a - b| / |a| of each tensor (Euclidean norms) must not exceed it; of --start, |a - b| / |a - start|: the updates are
// compared then, not the much larger parameters, and only parameters are.
// Tensors whose names end in --except are left out: a key bias of the GPT-2 family changes no output (softmax does not
// see what all keys share), so its gradient is nothing but rounding. Prints the worst tensor. Exit codes: 0 equal, 1
// different, 2 cannot be compared.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/core/error.hpp"

namespace {

using hat::CheckpointReader;
using hat::CheckpointState;

struct Arguments {
  double tolerance = -1.0;  // below 0: bit by bit
  std::string start;
  std::string except;
  std::vector<std::string> runs;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with("--") && i + 1 == argc) throw hat::InputError("command line", word, "takes a value");
    if (word == "--tolerance") {
      arguments.tolerance = std::stod(argv[++i]);
    } else if (word == "--start") {
      arguments.start = argv[++i];
    } else if (word == "--except") {
      arguments.except = argv[++i];
    } else {
      arguments.runs.push_back(word);
    }
  }
  if (arguments.runs.size() != 2) throw hat::InputError("command line", "", "two checkpoints are needed");
  if (!arguments.start.empty() && arguments.tolerance < 0) {
    throw hat::InputError("command line", "--start", "needs --tolerance");
  }
  return arguments;
}

/// Tensors by path. Optimizer state has the shape of the parameter of the same name.
std::map<std::string, std::vector<float>> read_tensors(const CheckpointReader& reader) {
  const hat::ModelLayout layout = hat::make_layout(reader.state().model);
  std::map<std::string, hat::TensorSpec> shapes;
  for (const hat::BlockSpec& block : layout.blocks) {
    for (const hat::TensorSpec& tensor : block.tensors) {
      const std::string path = hat::parameter_path(block, tensor);
      shapes[path.substr(path.rfind('/'))] = tensor;
    }
  }
  std::map<std::string, std::vector<float>> tensors;
  for (const std::string& path : reader.tensors()) {
    const hat::TensorSpec& shape = shapes.at(path.substr(path.rfind('/')));
    std::vector<float>& values = tensors[path];
    const int64_t columns = path.starts_with("/optimizer/adamw.beta1_product/") ? 1 : shape.columns;  // one value a row
    values.resize(static_cast<size_t>(shape.rows * columns));
    reader.read(path, 0, shape.rows, columns, values.data());
  }
  return tensors;
}

double norm_of_difference(const std::vector<float>& a, const std::vector<float>* b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - (b == nullptr ? 0.0 : static_cast<double>((*b)[i]));
    sum += difference * difference;
  }
  return std::sqrt(sum);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::optional<std::string> difference_of_states(const CheckpointState& a, const CheckpointState& b) {
  if (a.step != b.step) return fmt::format("steps {} and {}", a.step, b.step);
  if (a.epoch != b.epoch) return fmt::format("epochs {} and {}", a.epoch, b.epoch);
  if (a.tokens != b.tokens) return fmt::format("tokens {} and {}", a.tokens, b.tokens);
  if (a.block_names != b.block_names) return "names of blocks";
  if (a.block_versions != b.block_versions) return "versions of blocks";
  return std::nullopt;
}

int compare(const Arguments& arguments) {
  const CheckpointReader first(arguments.runs[0]);
  const CheckpointReader second(arguments.runs[1]);
  if (const auto difference = difference_of_states(first.state(), second.state())) {
    fmt::print("different {}\n", *difference);
    return 1;
  }
  const auto a = read_tensors(first);
  const auto b = read_tensors(second);
  std::map<std::string, std::vector<float>> start;
  if (!arguments.start.empty()) start = read_tensors(CheckpointReader(arguments.start));
  if (a.size() != b.size() || a.empty()) {
    fmt::print("{} tensors and {} tensors\n", a.size(), b.size());
    return 1;
  }
  double worst = 0;
  std::string worst_path;
  int64_t unequal = 0;
  int64_t compared = 0;
  for (const auto& [path, values] : a) {
    if (!start.empty() && !path.starts_with("/parameters/")) continue;
    if (!arguments.except.empty() && path.ends_with(arguments.except)) continue;
    const auto other = b.find(path);
    if (other == b.end() || other->second.size() != values.size()) {
      fmt::print("{} is not in both, or has two shapes\n", path);
      return 1;
    }
    ++compared;
    if (!same_bits(values, other->second)) ++unequal;
    const double scale = norm_of_difference(values, start.empty() ? nullptr : &start.at(path));
    const double distance = norm_of_difference(values, &other->second);
    // Where nothing is to compare with (a tensor of zeros), any difference is a whole one. NaN is worse than anything.
    double relative = distance == 0 ? 0 : (scale == 0 ? 1 : distance / scale);
    if (std::isnan(relative)) relative = HUGE_VAL;
    if (relative > worst) {
      worst = relative;
      worst_path = path;
    }
  }
  fmt::print("step {}: {} tensors compared, {} differ, largest relative difference {:.3g} {}\n", first.state().step,
             compared, unequal, worst, worst_path);
  if (arguments.tolerance < 0) return unequal == 0 ? 0 : 1;
  return worst <= arguments.tolerance ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return compare(parse(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "compare_runs: {}\n", error.what());
    return 2;
  }
}
