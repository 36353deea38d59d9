#pragma once
#include <string>
#include <vector>

#include "hat/checkpoint/checkpoint.hpp"
#include "hat/core/random.hpp"
#include "io_support.hpp"

/// A small model spread over servers, for the tests of checkpoints.
namespace hat::test {

struct StoredTensor {
  std::string path;
  int64_t rows = 0;
  int64_t columns = 1;
  bool is_vector = false;
  std::vector<float> values;

  TensorSlice slice(int64_t first_row, int64_t slice_rows) const {
    return {path, rows, columns, is_vector, first_row, slice_rows, values.data() + first_row * columns};
  }
};

inline std::vector<StoredTensor> make_tensors() {
  std::vector<StoredTensor> tensors{{"/parameters/embedding.weight", 257, 6, false, {}},
                                    {"/parameters/layers.0.attention.norm.weight", 6, 1, true, {}},
                                    {"/parameters/layers.0.attention.q.weight", 7, 6, false, {}},
                                    {"/optimizer/adamw.m/embedding.weight", 257, 6, false, {}}};
  for (size_t t = 0; t < tensors.size(); ++t) {
    tensors[t].values.resize(static_cast<size_t>(tensors[t].rows * tensors[t].columns));
    for (size_t i = 0; i < tensors[t].values.size(); ++i) {
      tensors[t].values[i] = static_cast<float>(random_normal(3, t, i));
    }
  }
  return tensors;
}

/// Rows dealt out in equal runs; server 0 keeps vectors whole; the last server has two slices of the embedding.
inline std::vector<std::vector<TensorSlice>> deal(const std::vector<StoredTensor>& tensors, int64_t servers) {
  std::vector<std::vector<TensorSlice>> slices(static_cast<size_t>(servers));
  for (const StoredTensor& tensor : tensors) {
    if (tensor.is_vector) {
      slices[0].push_back(tensor.slice(0, tensor.rows));
      continue;
    }
    for (int64_t s = 0; s < servers; ++s) {
      const int64_t begin = tensor.rows * s / servers;
      const int64_t end = tensor.rows * (s + 1) / servers;
      auto& own = slices[static_cast<size_t>(s)];
      if (s + 1 == servers && end - begin > 1) {
        own.push_back(tensor.slice(begin + 1, end - begin - 1));
        own.push_back(tensor.slice(begin, 1));
      } else {
        own.push_back(tensor.slice(begin, end - begin));
      }
    }
  }
  return slices;
}

inline CheckpointState make_state(int64_t step) {
  CheckpointState state;
  state.step = step;
  state.epoch = 2;
  state.tokens = int64_t{1} << 40;
  state.seed = ~uint64_t{0} - 5;
  state.block_names = {"embedding", "layers.0.attention"};
  state.block_versions = {step, step - 1};
  state.recent_norms = {0.1, 2.5e-7};
  state.deck = "mode = \"hybrid\"\n[model]\nwidth = 6\n";
  state.dataset_path = "/data/d.h5";
  state.dataset_identity = "0123456789abcdef";
  state.tokenizer = "byte";
  state.model.family = ModelFamily::gpt2;
  state.model.width = 6;
  state.model.vocabulary = 257;
  state.model.tied = true;
  state.model.rope_base = 5000.0;
  return state;
}

/// Writes a complete checkpoint and returns its folder.
inline std::filesystem::path write_checkpoint(const std::filesystem::path& run, int64_t step, int64_t servers,
                                              const std::vector<StoredTensor>& tensors) {
  const auto folder = checkpoint_folder(run, step);
  const auto slices = deal(tensors, servers);
  for (size_t s = 0; s < slices.size(); ++s) write_server_file(folder, static_cast<int64_t>(s), step, slices[s]);
  complete_checkpoint(folder, make_state(step), slices);
  return folder;
}

}  // namespace hat::test
