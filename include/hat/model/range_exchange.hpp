#pragma once
#include <cstddef>
#include <cstdint>

#include "hat/kernels/values.hpp"

namespace hat {

/// What keys and values travel as between the workers of a gang, and their gradients.
struct GangWire {
  Element forward = Element::fp32;
  Element backward = Element::fp32;
};

/// Copies `count` values into `data` as elements of `to`; bf16 stays bf16.
void copy_values(ConstValues from, int64_t count, Element to, std::byte* data);

/// What a member of a gang gives to the other members and needs from them while its model computes a range of their
/// sequence (PackedBatch::range). For one pass at a time; called on the thread that computes. The members'
/// models and parameters are the same.
///
/// Of a layer (counted from 0), the K and V of a range of T tokens are (T, 2 K D): the keys of a token, rotated, then
/// its values, in the element that the model stores. Their gradients have the same shape, always in fp32.
///
/// Calls of a pass, layer by layer:
///   forward, ascending:    send_keys_values; wait_earlier of each earlier member, the nearest first
///   backward, descending:  for each earlier member, 0 first: wait_earlier, send_gradients; then wait_later
///                          of each later member, ascending; release
/// With Recompute::full a layer's backward begins with its forward pass once more: the same calls of wait_earlier, no
/// second send_keys_values. In a pass without backward, release follows the forward pass of a layer.
///
/// What lies between hides the messages. send_keys_values comes before the queries are computed and before the
/// attention to the own range; the K and V of the nearest ranges, which are the shortest where all cost the same, come
/// in first. On the way back, gradients leave for the member that has least else to do before those for others; the
/// attention to the own range and the backward pass of its queries come before the first wait_later.
///
/// No deadlock as long as send_keys_values and send_gradients return without the help of other members: wait_earlier(l)
/// of member m depends on send_keys_values(l) of members before m, and so on their waits at layers before l and at none
/// after; wait_later(l) depends on send_gradients(l) of members after m, and so on their waits at layers after l, and
/// on forward passes, which wait for nothing backward. Neither chain comes back to where it began, whatever order
/// messages arrive in.
///
/// The waiting functions may throw, e.g. when a member died: the pass ends with that exception, with its gradients
/// added in part, and the model may be used again. All additions are in a fixed order, whatever comes in first.
class RangeExchange {
 public:
  virtual ~RangeExchange() = default;
  /// The K and V of the own range are final. They are valid until the call returns. Later members need them until they
  /// release the layer.
  virtual void send_keys_values(int64_t layer, ConstValues keys_values) = 0;
  /// The K and V of an earlier member's range, valid until release(layer): the backward pass asks for them once more,
  /// and must get the same.
  virtual ConstValues wait_earlier(int64_t layer, int64_t member) = 0;
  /// The own range's share in the gradient of an earlier member's K and V, valid until the call returns.
  virtual void send_gradients(int64_t layer, int64_t member, const float* d_keys_values) = 0;
  /// A later member's share in the gradient of the own K and V, valid until release(layer).
  virtual const float* wait_later(int64_t layer, int64_t member) = 0;
  /// Called often in between: messages that are under way may go on. Must not wait.
  virtual void progress() {}
  /// The pass needs nothing more of the layer.
  virtual void release(int64_t layer) = 0;
};

}  // namespace hat
