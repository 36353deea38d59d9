// Documents that share a batch do not see each other, and a batch may be cut between documents at will.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "model_support.hpp"

namespace hat::test {
namespace {

constexpr double kTolerance = 1e-5;

class Packing : public testing::TestWithParam<ModelFamily> {
 protected:
  static ModelConfig config() {
    ModelConfig result = GetParam() == ModelFamily::gpt2 ? small_gpt2() : small_llama();
    result.max_length = 600;
    return result;
  }
};

/// Loss and gradient of several batches, added up.
LossSum add_up(Transformer& model, const std::vector<PackedBatch>& batches, const BlockValues& parameters,
               BlockValues& gradients) {
  PassObserver nobody;
  LossSum sum;
  for (const PackedBatch& batch : batches) {
    const LossSum loss = model.gradient(batch, parameters.parameters(), gradients.gradients(), nobody);
    sum.nats += loss.nats;
    sum.tokens += loss.tokens;
  }
  return sum;
}

TEST_P(Packing, ATokenOfOneDocumentLeavesTheLogitsOfOthersToTheBit) {
  Transformer model(config());
  const BlockValues parameters = formula_parameters(model.layout(), 1, 0.3);
  const std::vector<int32_t> lengths = {70, 1, 300, 5, 129};
  const PackedBatch batch = random_batch(lengths, 61, 1);
  std::vector<float> before;
  model.logits(batch, parameters.parameters(), before);
  for (size_t document = 0; document < lengths.size(); ++document) {
    const auto begin = batch.offsets[document];
    const auto end = batch.offsets[document + 1];
    const auto changed = static_cast<size_t>(begin) + static_cast<size_t>(end - begin) / 2;
    PackedBatch other = batch;
    other.inputs[changed] = (other.inputs[changed] + 1) % 61;
    std::vector<float> after;
    model.logits(other, parameters.parameters(), after);
    for (size_t t = 0; t < batch.inputs.size(); ++t) {
      const bool same =
          std::equal(before.begin() + static_cast<int64_t>(t) * 61, before.begin() + static_cast<int64_t>(t + 1) * 61,
                     after.begin() + static_cast<int64_t>(t) * 61);
      // Only the changed token and what comes after it in its document may differ, and all of those do.
      const bool may_differ = t >= changed && t < static_cast<size_t>(end);
      ASSERT_EQ(same, !may_differ) << "document " << document << ", position " << t;
    }
  }
}

TEST_P(Packing, EqualsTheDocumentsAlone) {
  Transformer model(config());
  const BlockValues parameters = formula_parameters(model.layout(), 1, 0.3);
  PackedBatch batch = random_batch({70, 1, 300, 5, 129, 520}, 61, 1);
  batch.targets[3] = -1;
  batch.targets[400] = -1;
  std::vector<PackedBatch> alone;
  for (size_t document = 0; document < 6; ++document) alone.push_back(one_document(batch, document));

  BlockValues packed_gradients(model.layout());
  const LossSum packed = add_up(model, {batch}, parameters, packed_gradients);
  BlockValues alone_gradients(model.layout());
  const LossSum sum = add_up(model, alone, parameters, alone_gradients);
  EXPECT_EQ(packed.tokens, sum.tokens);
  EXPECT_EQ(packed.tokens, 70 + 1 + 300 + 5 + 129 + 520 - 2);
  EXPECT_NEAR(packed.nats, sum.nats, kTolerance * sum.nats);
  for (size_t b = 0; b < packed_gradients.blocks(); ++b) {
    EXPECT_LE(relative_distance(packed_gradients.block(b), alone_gradients.block(b)), kTolerance) << b;
  }
}

TEST_P(Packing, MicroBatchesAddUpToTheBatch) {
  Transformer model(config());
  const BlockValues parameters = formula_parameters(model.layout(), 1, 0.3);
  const PackedBatch batch = random_batch({5, 1, 2, 9}, 61, 4);
  std::vector<PackedBatch> parts;
  for (size_t document = 0; document < 4; ++document) parts.push_back(one_document(batch, document));

  BlockValues whole_gradients(model.layout());
  const LossSum whole = add_up(model, {batch}, parameters, whole_gradients);
  // Two workers, units handed out in turn; what each adds up is added in the end.
  BlockValues first(model.layout());
  BlockValues second(model.layout());
  const LossSum loss_first = add_up(model, {parts[0], parts[2]}, parameters, first);
  const LossSum loss_second = add_up(model, {parts[1], parts[3]}, parameters, second);
  EXPECT_EQ(whole.tokens, 17);
  EXPECT_EQ(loss_first.tokens + loss_second.tokens, 17);
  EXPECT_NEAR(loss_first.nats + loss_second.nats, whole.nats, kTolerance * whole.nats);
  for (size_t b = 0; b < first.blocks(); ++b) {
    for (size_t i = 0; i < first.block(b).size(); ++i) first.block(b)[i] += second.block(b)[i];
    EXPECT_LE(relative_distance(first.block(b), whole_gradients.block(b)), kTolerance) << b;
  }
}

TEST_P(Packing, RepeatsToTheBitWhateverCameBefore) {
  Transformer model(config());
  const BlockValues parameters = formula_parameters(model.layout(), 1, 0.3);
  const PackedBatch batch = random_batch({33, 300, 2}, 61, 4);
  BlockValues first(model.layout());
  const LossSum loss = add_up(model, {batch}, parameters, first);
  BlockValues between(model.layout());
  add_up(model, {random_batch({3}, 61, 9), random_batch({590, 100}, 61, 9)}, parameters, between);
  BlockValues again(model.layout());
  EXPECT_EQ(add_up(model, {batch}, parameters, again).nats, loss.nats);
  for (size_t b = 0; b < first.blocks(); ++b) EXPECT_EQ(first.block(b), again.block(b)) << b;
}

INSTANTIATE_TEST_SUITE_P(Families, Packing, testing::Values(ModelFamily::llama, ModelFamily::gpt2),
                         [](const auto& info) { return info.param == ModelFamily::gpt2 ? "gpt2" : "llama"; });

}  // namespace
}  // namespace hat::test
