#include "hat/commands/generation.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "hat/core/error.hpp"
#include "hat/core/random.hpp"

namespace hat {

namespace {

constexpr uint64_t kSampleStream = 0x53414d504cULL << 24;

/// The token whose stretch of the cumulated softmax holds `uniform` in [0, 1).
int32_t draw(std::span<const float> logits, double temperature, double uniform) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (temperature == 0.0) return static_cast<int32_t>(likeliest - logits.begin());
  std::vector<double> cumulated(logits.size());
  double sum = 0.0;
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += std::exp((static_cast<double>(logits[i]) - static_cast<double>(*likeliest)) / temperature);
    cumulated[i] = sum;
  }
  const auto found = std::upper_bound(cumulated.begin(), cumulated.end(), uniform * sum);
  return static_cast<int32_t>(std::min<std::ptrdiff_t>(found - cumulated.begin(), std::ssize(cumulated) - 1));
}

/// One document without targets: the newest `max_length` tokens of the context.
PackedBatch last_window(const std::vector<int32_t>& context, int64_t max_length) {
  const auto length = std::min(std::ssize(context), static_cast<std::ptrdiff_t>(max_length));
  PackedBatch batch;
  batch.inputs.assign(context.end() - length, context.end());
  batch.targets.assign(static_cast<size_t>(length), -1);
  batch.offsets = {0, static_cast<int32_t>(length)};
  return batch;
}

}  // namespace

std::string generate_text(Transformer& model, const ParameterPointers& parameters, const Tokenizer& tokenizer,
                          const std::string& prompt, int64_t tokens, double temperature, uint64_t seed,
                          const std::function<bool()>& goes_on) {
  const auto vocabulary = static_cast<size_t>(model.config().vocabulary);
  // Only what the tokenizer knows is drawn: a model may have spare rows behind its tokens.
  const size_t known = std::min(vocabulary, static_cast<size_t>(tokenizer.vocabulary()));
  std::vector<int32_t> context{tokenizer.end_of_text()};
  tokenizer.encode(prompt, context);
  std::vector<float> logits;
  for (int64_t i = 0; i < tokens && (!goes_on || goes_on()); ++i) {
    const PackedBatch batch = last_window(context, model.config().max_length);
    model.logits(batch, parameters, logits);
    const std::span<const float> last = std::span(logits).last(vocabulary).first(known);
    if (!std::all_of(last.begin(), last.end(), [](float x) { return std::isfinite(x); })) {
      throw Error("generation: the model's logits are not finite");
    }
    const int32_t token = draw(last, temperature, random_uniform(seed, kSampleStream, static_cast<uint64_t>(i)));
    if (token == tokenizer.end_of_text()) break;
    context.push_back(token);
  }
  return tokenizer.decode(std::span(context).subspan(1));
}

}  // namespace hat
