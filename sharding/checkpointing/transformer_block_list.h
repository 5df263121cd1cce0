// SPDX-License-Identifier: Apache-2.0
#pragma once
// `TransformerBlockList` runs blocks one after another: hidden states pass from
// block to block, the other arguments go to every block.

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/checkpointing/checkpoint_block.h"
#include "tessera/sharding/groups/group_policy.h"

#include <ATen/ops/stack.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

/// The result of a list of blocks together with all its hidden states.
template <typename Hidden>
struct HiddenStates {
  Hidden output;
  /// The inputs of all blocks, including the first, stacked: [blocks, ...] for
  /// each hidden state.
  Hidden entered;
};

/// A list of blocks, each a CheckpointBlock, registered as "0", "1", ... or
/// under its number in a larger list, and a group of its own in an engine.
///
/// @tparam Holder holder of the block's module, e.g. TransformerLayer. Its
///   forward takes NumHidden tensors, then any arguments that a CheckpointBlock
///   takes, and returns a tensor (NumHidden = 1) or a tuple, array or vector of
///   NumHidden tensors.
template <typename Holder, size_t NumHidden = 1>
class TransformerBlockListImpl : public torch::nn::Module,
                                 public ModuleContainer {
  static_assert(NumHidden >= 1);

 public:
  using Block = CheckpointBlock<Holder>;
  using States = std::array<at::Tensor, NumHidden>;
  /// Return type of forward().
  using Hidden = std::conditional_t<NumHidden == 1, at::Tensor, States>;

  /// Makes a list of blocks that have options of their own.
  /// @param blocks_per_checkpoint number of consecutive blocks that are
  ///   recomputed together: with more, fewer inputs are kept, but more memory
  ///   is used during recomputation. The square root of the number of blocks
  ///   needs about the least memory.
  /// @param numbers numbers of the blocks, ascending, if they are part of a
  ///   larger list; empty: 0, 1, ...
  explicit TransformerBlockListImpl(
      const std::vector<Block>& blocks,
      size_t blocks_per_checkpoint = 1,
      std::vector<int> numbers = {})
      : blocks_per_checkpoint_(blocks_per_checkpoint),
        numbers_(std::move(numbers)) {
    TESSERA_CHECK(
        !blocks.empty(), "TransformerBlockList: there are no blocks.");
    TESSERA_CHECK(
        blocks_per_checkpoint > 0,
        "TransformerBlockList: blocks_per_checkpoint is 0; it must be at least 1.");
    if (numbers_.empty()) {
      for (size_t i = 0; i < blocks.size(); ++i) {
        numbers_.push_back(static_cast<int>(i));
      }
    }
    TESSERA_CHECK(
        numbers_.size() == blocks.size() &&
            std::is_sorted(numbers_.begin(), numbers_.end()),
        "TransformerBlockList: {} blocks have {} numbers; each needs one, in ascending order.",
        blocks.size(),
        numbers_.size());
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks_.push_back(
          register_module(std::to_string(numbers_[i]), blocks[i].ptr()));
    }
  }

  /// Makes a list of blocks with the same options.
  explicit TransformerBlockListImpl(
      const std::vector<Holder>& blocks,
      const CheckpointOptions& options = {},
      size_t blocks_per_checkpoint = 1,
      std::vector<int> numbers = {})
      : TransformerBlockListImpl(
            checkpointed(blocks, options),
            blocks_per_checkpoint,
            std::move(numbers)) {}

  /// The first NumHidden arguments are the hidden states.
  template <typename... Arguments>
  Hidden forward(const Arguments&... arguments) {
    return unpack(run_all(nullptr, all(), arguments...));
  }

  /// Runs only the blocks numbered [begin, end).
  /// @throws tessera::Error when one of them is not in this list.
  template <typename... Arguments>
  Hidden forward_range(int begin, int end, const Arguments&... arguments) {
    return unpack(run_all(nullptr, range(begin, end), arguments...));
  }

  /// As forward_range(), and also returns the inputs of all blocks.
  template <typename... Arguments>
  HiddenStates<Hidden> forward_range_with_hidden_states(
      int begin,
      int end,
      const Arguments&... arguments) {
    return with_hidden_states(range(begin, end), arguments...);
  }

  /// As forward(), and also returns the inputs of all blocks.
  template <typename... Arguments>
  HiddenStates<Hidden> forward_with_hidden_states(
      const Arguments&... arguments) {
    return with_hidden_states(all(), arguments...);
  }

  size_t size() const {
    return blocks_.size();
  }

  const std::shared_ptr<typename Block::Impl>& block(size_t index) const {
    return blocks_.at(index);
  }

  std::shared_ptr<Module> clone(
      const std::optional<torch::Device>& /*device*/ = {}) const override {
    TESSERA_FAIL("TransformerBlockList: it cannot be cloned; build another.");
  }

  void pretty_print(std::ostream& stream) const override {
    stream << "tessera::TransformerBlockList";
  }

 private:
  using Blocks = std::vector<std::shared_ptr<typename Block::Impl>>;
  using Span = std::pair<size_t, size_t>; ///< indices into blocks_

  Span all() const {
    return {0, blocks_.size()};
  }

  Span range(int begin, int end) const {
    const auto first =
        std::lower_bound(numbers_.begin(), numbers_.end(), begin);
    const auto last = std::lower_bound(first, numbers_.end(), end);
    TESSERA_CHECK(
        begin < end && last - first == end - begin,
        "TransformerBlockList: blocks {} to {} are not all present; there are {}, from {} to {}.",
        begin,
        end - 1,
        numbers_.size(),
        numbers_.front(),
        numbers_.back());
    return {
        static_cast<size_t>(first - numbers_.begin()),
        static_cast<size_t>(last - numbers_.begin())};
  }

  template <typename... Arguments>
  HiddenStates<Hidden> with_hidden_states(
      const Span& blocks,
      const Arguments&... arguments) {
    std::vector<States> entered;
    HiddenStates<Hidden> result;
    result.output = unpack(run_all(&entered, blocks, arguments...));
    States stacked;
    for (size_t h = 0; h < NumHidden; ++h) {
      std::vector<at::Tensor> one;
      for (const States& states : entered) {
        one.push_back(states[h]);
      }
      stacked[h] = at::stack(one);
    }
    result.entered = unpack(std::move(stacked));
    return result;
  }

  static std::vector<Block> checkpointed(
      const std::vector<Holder>& modules,
      const CheckpointOptions& options) {
    std::vector<Block> blocks;
    for (const Holder& module : modules) {
      blocks.emplace_back(module, options);
    }
    return blocks;
  }

  static Hidden unpack(States states) {
    if constexpr (NumHidden == 1) {
      return std::move(states[0]);
    } else {
      return states;
    }
  }

  template <typename Result>
  static States states_of(const Result& result) {
    if constexpr (std::is_same_v<Result, at::Tensor>) {
      static_assert(NumHidden == 1, "a block must return NumHidden tensors");
      return {result};
    } else if constexpr (std::is_same_v<Result, std::vector<at::Tensor>>) {
      TESSERA_CHECK(
          result.size() == NumHidden,
          "TransformerBlockList: a block returned {} tensors; it must return its {} hidden states.",
          result.size(),
          NumHidden);
      States states;
      std::copy(result.begin(), result.end(), states.begin());
      return states;
    } else {
      static_assert(
          std::tuple_size_v<Result> == NumHidden,
          "a block must return NumHidden tensors");
      return std::apply(
          [](const auto&... tensors) { return States{tensors...}; }, result);
    }
  }

  /// Runs the blocks one after another; also returns the inputs of all but the
  /// first.
  template <typename... Others>
  static std::pair<States, std::vector<States>> run(
      const Blocks& blocks,
      States hidden,
      const Others&... others) {
    std::vector<States> entered;
    for (const auto& block : blocks) {
      if (block != blocks.front()) {
        entered.push_back(hidden);
      }
      hidden = std::apply(
          [&](const auto&... states) {
            return states_of(block->plain_forward(states..., others...));
          },
          hidden);
    }
    return {std::move(hidden), std::move(entered)};
  }

  template <typename... Arguments>
  States run_all(
      std::vector<States>* entered,
      const Span& blocks,
      const Arguments&... arguments) {
    static_assert(
        sizeof...(Arguments) >= NumHidden,
        "the first NumHidden arguments are the hidden states");
    const auto given = std::forward_as_tuple(arguments...);
    return [&]<size_t... H, size_t... O>(
        std::index_sequence<H...>, std::index_sequence<O...>) {
      return run_segments(
          entered,
          blocks,
          States{std::get<H>(given)...},
          std::get<NumHidden + O>(given)...);
    }
    (std::make_index_sequence<NumHidden>(),
     std::make_index_sequence<sizeof...(Arguments) - NumHidden>());
  }

  template <typename... Others>
  States run_segments(
      std::vector<States>* entered,
      const Span& blocks,
      States hidden,
      const Others&... others) {
    for (size_t first = blocks.first; first < blocks.second;) {
      Blocks segment = segment_from(first, blocks.second);
      first += segment.size();
      if (entered != nullptr) {
        entered->push_back(hidden);
      }
      auto [output, inner] = call(std::move(segment), hidden, others...);
      hidden = std::move(output);
      if (entered != nullptr) {
        entered->insert(entered->end(), inner.begin(), inner.end());
      }
    }
    return hidden;
  }

  /// Returns the blocks, starting at `first`, that are recomputed together.
  Blocks segment_from(size_t first, size_t last) const {
    const auto begin = blocks_.begin() + static_cast<std::ptrdiff_t>(first);
    const size_t most = std::min(blocks_per_checkpoint_, last - first);
    auto end = begin + 1;
    while (end != begin + static_cast<std::ptrdiff_t>(most) &&
           (*begin)->use_checkpoint && (*end)->use_checkpoint) {
      ++end;
    }
    return Blocks(begin, end);
  }

  template <typename... Others>
  static std::pair<States, std::vector<States>> call(
      Blocks segment,
      const States& hidden,
      const Others&... others) {
    if (!segment.front()->use_checkpoint) {
      return run(segment, hidden, others...);
    }
    const bool trains =
        std::any_of(segment.begin(), segment.end(), [](const auto& block) {
          return block->trains();
        });
    std::vector<at::Tensor> buffers;
    for (const auto& block : segment) {
      for (at::Tensor& buffer : block->updated_buffers()) {
        buffers.push_back(std::move(buffer));
      }
    }
    // All blocks of a list are on the same devices.
    const CheckpointMode mode{
        .trains = trains,
        .inputs_on_host = segment.front()->inputs_on_host,
        .divide_over = segment.front()->divide_inputs_over,
        .devices = segment.front()->devices(),
        .buffers = std::move(buffers)};
    return checkpoint(
        mode,
        [segment = std::move(segment)](
            const States& states, const auto&... copies) {
          return run(segment, states, copies...);
        },
        hidden,
        others...);
  }

  Blocks blocks_;
  size_t blocks_per_checkpoint_;
  std::vector<int> numbers_; ///< numbers of the blocks, ascending
};

/// Module holder: TransformerBlockList<Layer> layers(std::vector<Layer>{...}).
template <typename Holder, size_t NumHidden = 1>
class TransformerBlockList : public torch::nn::ModuleHolder<
                                 TransformerBlockListImpl<Holder, NumHidden>> {
 public:
  using Impl = TransformerBlockListImpl<Holder, NumHidden>;

  explicit TransformerBlockList(
      const std::vector<Holder>& blocks,
      const CheckpointOptions& options = {},
      size_t blocks_per_checkpoint = 1,
      std::vector<int> numbers = {})
      : torch::nn::ModuleHolder<Impl>(std::make_shared<Impl>(
            blocks,
            options,
            blocks_per_checkpoint,
            std::move(numbers))) {}
  explicit TransformerBlockList(
      const std::vector<CheckpointBlock<Holder>>& blocks,
      size_t blocks_per_checkpoint = 1)
      : torch::nn::ModuleHolder<Impl>(
            std::make_shared<Impl>(blocks, blocks_per_checkpoint)) {}
  /* implicit */ TransformerBlockList(std::shared_ptr<Impl> module)
      : torch::nn::ModuleHolder<Impl>(std::move(module)) {}
  /* implicit */ TransformerBlockList(std::nullptr_t)
      : torch::nn::ModuleHolder<Impl>(nullptr) {}

  // ModuleHolder::operator() does not see a forward that is a template.
  template <typename... Arguments>
  auto operator()(const Arguments&... arguments) {
    return this->get()->forward(arguments...);
  }
};

} // namespace tessera
