// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/kernels/pattern_attention.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/dry_run/dry_run.h"
#include "tessera/runtime/kernels/attention_kernels.h"
#include "tessera/runtime/kernels/operator_tensors.h"
#include "tessera/runtime/memory/dry_heap.h"
#include "tessera/runtime/threads/parallel.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>

namespace tessera::runtime {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// tessera::pattern_attention.
/// @return the output, the logarithms of sums, [B, h, Q] float32, and the
///   number, int64 [1], that dropout drew; without dropout [0].
using PatternAttentionOperator = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& first,
    const at::Tensor& end,
    const std::optional<at::Tensor>& seen,
    const std::optional<at::Tensor>& global_keys,
    double scale,
    double share,
    double dropout,
    int64_t first_head,
    int64_t layer_heads);

/// tessera::pattern_attention_backward.
using PatternAttentionBackwardOperator =
    std::tuple<at::Tensor, at::Tensor, at::Tensor>(
        const at::Tensor& gradient,
        const at::Tensor& query,
        const at::Tensor& key,
        const at::Tensor& value,
        const at::Tensor& out,
        const at::Tensor& log_sums,
        const at::Tensor& first,
        const at::Tensor& end,
        const std::optional<at::Tensor>& seen,
        const std::optional<at::Tensor>& global_keys,
        double scale,
        double share,
        const at::Tensor& drawn,
        double dropout,
        int64_t first_head,
        int64_t layer_heads);

/// A query that sees so many times more keys than its neighbors gets a tile of
/// its own.
constexpr int64_t kWiderTile = 4;

int64_t length_of(const AttentionRow& row, int64_t query) {
  return std::max<int64_t>(0, row.end[query] - row.first[query]);
}

std::vector<AttentionTile> tiles_of(const AttentionRow& row, int64_t queries) {
  std::vector<AttentionTile> tiles;
  for (int64_t i = 0; i < queries; ++i) {
    const int64_t length = length_of(row, i);
    const int64_t first = length > 0 ? row.first[i] : 0;
    const int64_t end = length > 0 ? row.end[i] : 0;
    AttentionTile* const last = tiles.empty() ? nullptr : &tiles.back();
    if (last == nullptr || last->end - last->begin == kAttentionRows) {
      tiles.push_back({i, i + 1, first, end});
      continue;
    }
    const int64_t tile_length = last->key_end - last->key_begin;
    const int64_t key_begin =
        tile_length == 0 ? first
                         : (length == 0 ? last->key_begin
                                        : std::min(last->key_begin, first));
    const int64_t key_end = std::max(last->key_end, end);
    const int64_t most =
        kWiderTile * std::min(length, tile_length) + 2 * kAttentionKeys;
    const bool shares = length == 0 || tile_length == 0 ||
                        (first < last->key_end && end > last->key_begin);
    if (!shares ||
        (length > 0 && tile_length > 0 && key_end - key_begin > most)) {
      tiles.push_back({i, i + 1, first, end});
      continue;
    }
    *last = {last->begin, i + 1, key_begin, key_end};
  }
  return tiles;
}

} // namespace

AttentionSchedule AttentionSchedule::of(
    const AttentionRow& row,
    int64_t queries,
    int64_t keys) {
  AttentionSchedule schedule;
  schedule.tiles = tiles_of(row, queries);
  const auto count = static_cast<int64_t>(schedule.tiles.size());
  if (row.global != nullptr &&
      std::any_of(
          row.global, row.global + keys, [](uint8_t is) { return is != 0; })) {
    schedule.components.push_back({0, count, 0, keys});
    return schedule;
  }
  std::vector<AttentionComponent> found;
  for (int64_t i = 0; i < count; ++i) {
    const AttentionTile& tile = schedule.tiles[static_cast<size_t>(i)];
    AttentionComponent next{i, i + 1, tile.key_begin, tile.key_end};
    const bool sees = next.key_begin < next.key_end;
    if (!sees && !found.empty()) {
      found.back().end = i + 1;
      continue;
    }
    while (!found.empty() && (found.back().key_end > next.key_begin ||
                              found.back().key_begin == found.back().key_end)) {
      const AttentionComponent& last = found.back();
      const bool last_sees = last.key_begin < last.key_end;
      next = {
          last.begin,
          next.end,
          last_sees ? std::min(last.key_begin, next.key_begin) : next.key_begin,
          last_sees ? std::max(last.key_end, next.key_end) : next.key_end};
      found.pop_back();
    }
    found.push_back(next);
  }
  int64_t covered = 0;
  for (const AttentionComponent& one : found) {
    if (one.key_begin > covered) {
      schedule.components.push_back({0, 0, covered, one.key_begin});
    }
    schedule.components.push_back(one);
    covered = std::max(covered, one.key_end);
  }
  if (covered < keys) {
    schedule.components.push_back({0, 0, covered, keys});
  }
  return schedule;
}

namespace {

/// Without gaps within a row.
at::Tensor with_rows(const at::Tensor& x) {
  return x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous();
}

/// [B, heads, tokens, features], by token in memory.
at::Tensor by_token(
    const at::Tensor& like,
    int64_t heads,
    int64_t tokens,
    int64_t features) {
  return at::empty({like.size(0), tokens, heads, features}, like.options())
      .transpose(1, 2);
}

AttentionMatrix matrix_of(const at::Tensor& x) {
  return {
      .data = const_cast<void*>(x.const_data_ptr()),
      .batch_stride = x.stride(0),
      .head_stride = x.stride(1),
      .row_stride = x.stride(2)};
}

/// The arrays of a pattern, and the schedule of each batch row.
class ScheduledPattern {
 public:
  ScheduledPattern(
      const at::Tensor& first,
      const at::Tensor& end,
      const std::optional<at::Tensor>& seen,
      const std::optional<at::Tensor>& global_keys,
      int64_t batch,
      int64_t queries,
      int64_t keys)
      : first_(first.expand({batch, queries}).contiguous()),
        end_(end.expand({batch, queries}).contiguous()),
        seen_(
            seen && seen->defined() ? seen->expand({batch, -1}).contiguous()
                                    : at::Tensor()),
        global_(
            global_keys && global_keys->defined()
                ? global_keys->expand({batch, -1}).contiguous()
                : at::Tensor()),
        queries_(queries),
        keys_(keys) {
    for (int64_t b = 0; b < batch; ++b) {
      const AttentionRow row = row_of(b);
      for (int64_t i = 0; i < queries_; ++i) {
        TESSERA_CHECK(
            row.first[i] >= row.end[i] ||
                (row.first[i] >= 0 && row.end[i] <= keys_),
            "pattern_attention: query {} of batch row {} sees keys {} .. {}; there are {}",
            i,
            b,
            row.first[i],
            row.end[i] - 1,
            keys_);
      }
      schedules_.push_back(AttentionSchedule::of(row, queries_, keys_));
    }
  }

  /// @param all also those without tiles.
  std::vector<AttentionUnit> units(int64_t key_heads, bool all) const {
    std::vector<AttentionUnit> units;
    for (size_t b = 0; b < schedules_.size(); ++b) {
      const AttentionSchedule& schedule = schedules_[b];
      for (int64_t head = 0; head < key_heads; ++head) {
        for (const AttentionComponent& component : schedule.components) {
          if (all || component.begin < component.end) {
            const auto batch = static_cast<int64_t>(b);
            units.push_back(
                {batch, head, row_of(batch), component, schedule.tiles.data()});
          }
        }
      }
    }
    return units;
  }

 private:
  AttentionRow row_of(int64_t batch) const {
    const auto bytes = [&](const at::Tensor& x) {
      return x.defined() ? static_cast<const uint8_t*>(x.const_data_ptr()) +
                               batch * keys_
                         : nullptr;
    };
    return {
        .first = first_.const_data_ptr<int32_t>() + batch * queries_,
        .end = end_.const_data_ptr<int32_t>() + batch * queries_,
        .seen = bytes(seen_),
        .global = bytes(global_)};
  }

  at::Tensor first_, end_, seen_, global_;
  int64_t queries_;
  int64_t keys_;
  std::vector<AttentionSchedule> schedules_;
};

int64_t scratch_threads(int64_t units) {
  return std::max<int64_t>(1, std::min<int64_t>(at::get_num_threads(), units));
}

/// [threads, floats].
at::Tensor scratch_of(const at::Tensor& like, int64_t units, int64_t floats) {
  // Each thread's begins at a line of the cache.
  return at::empty(
      {scratch_threads(units), attention_padded(floats)},
      like.options().dtype(at::kFloat));
}

template <typename Compute>
void for_units(
    const std::vector<AttentionUnit>& units,
    const at::Tensor& scratch,
    const Compute& compute) {
  const auto count = static_cast<int64_t>(units.size());
  const int64_t threads = scratch.size(0);
  float* const data = scratch.mutable_data_ptr<float>();
  // Every thread takes the next unit: they are of different sizes.
  std::atomic<int64_t> next = 0;
  parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      for (int64_t i = next++; i < count; i = next++) {
        compute(units[static_cast<size_t>(i)], data + thread * scratch.size(1));
      }
    }
  });
}

/// int64 [1], of the CPU's default generator.
at::Tensor drawn_number(const at::TensorOptions& options) {
  at::Tensor drawn = at::empty({1}, options.dtype(at::kLong));
  if (!is_dry_memory(drawn.const_data_ptr())) {
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard lock(generator.mutex());
    *drawn.mutable_data_ptr<int64_t>() = static_cast<int64_t>(
        at::check_generator<at::CPUGeneratorImpl>(generator)->random64());
  }
  return drawn;
}

/// @param drawn see PatternAttentionOperator.
DroppedWeights dropped_weights(
    const at::Tensor& drawn,
    const AttentionDropout& dropout) {
  if (dropout.probability == 0) {
    return {};
  }
  constexpr double kBits = 4294967296.0; // of keyed_bits()
  const double below = std::round(dropout.probability * kBits);
  return {
      .threshold = static_cast<uint32_t>(std::clamp(below, 1.0, kBits - 1)),
      .factor = dropout.probability < 1
                    ? static_cast<float>(1 / (1 - dropout.probability))
                    : 0,
      .seed = static_cast<uint64_t>(*drawn.const_data_ptr<int64_t>()),
      .first_head = dropout.first_head,
      .layer_heads = dropout.heads};
}

/// What dropout multiplies weights [B, h, Q, K] with.
at::Tensor kept_weights(
    const at::Tensor& query,
    int64_t keys,
    const DroppedWeights& dropped) {
  at::Tensor kept = at::empty(
      {query.size(0), query.size(1), query.size(2), keys},
      query.options().dtype(at::kFloat));
  float* to = kept.mutable_data_ptr<float>();
  for (int64_t b = 0; b < query.size(0); ++b) {
    for (int64_t head = 0; head < query.size(1); ++head) {
      for (int64_t i = 0; i < query.size(2); ++i) {
        const uint64_t key = dropped.key_of(b, head, query.size(2), i);
        for (int64_t k = 0; k < keys; ++k) {
          *to++ = dropped.kept(key, k);
        }
      }
    }
  }
  return kept;
}

AttentionArguments arguments_of(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& out,
    const at::Tensor& log_sums,
    double scale,
    const at::Tensor& drawn,
    const AttentionDropout& dropout) {
  return {
      .type = detail::low_precision_of(query),
      .group = query.size(1) / key.size(1),
      .heads = query.size(1),
      .queries = query.size(2),
      .features = query.size(3),
      .value_features = value.size(3),
      .scale = static_cast<float>(scale),
      .query = matrix_of(query),
      .key = matrix_of(key),
      .value = matrix_of(value),
      .out = matrix_of(out),
      .log_sums = log_sums.mutable_data_ptr<float>(),
      .dropped = dropped_weights(drawn, dropout)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pattern_attention_of_cpu(
    const at::Tensor& query_,
    const at::Tensor& key_,
    const at::Tensor& value_,
    const at::Tensor& first,
    const at::Tensor& end,
    const std::optional<at::Tensor>& seen,
    const std::optional<at::Tensor>& global_keys,
    double scale,
    double /*share*/,
    double dropout,
    int64_t first_head,
    int64_t layer_heads) {
  const at::Tensor query = with_rows(query_);
  const at::Tensor key = with_rows(key_);
  const at::Tensor value = with_rows(value_);
  const int64_t keys = key.size(2);
  at::Tensor out = by_token(query, query.size(1), query.size(2), value.size(3));
  at::Tensor log_sums = at::empty(
      {query.size(0), query.size(1), query.size(2)},
      query.options().dtype(at::kFloat));
  const at::Tensor scratch = scratch_of(
      query,
      query.size(0) * key.size(1),
      attention_scratch(keys, query.size(3), value.size(3)));
  const at::Tensor drawn =
      dropout > 0 ? drawn_number(query.options())
                  : at::empty({0}, query.options().dtype(at::kLong));
  if (is_dry_memory(out.const_data_ptr()) || out.numel() == 0) {
    return {out, log_sums, drawn};
  }
  const AttentionArguments all = arguments_of(
      query,
      key,
      value,
      out,
      log_sums,
      scale,
      drawn,
      {dropout, first_head, layer_heads});
  const ScheduledPattern pattern(
      first, end, seen, global_keys, query.size(0), query.size(2), keys);
  const AttentionKernel& kernel = attention_kernel(best_isa());
  for_units(
      pattern.units(key.size(1), /*all=*/false),
      scratch,
      [&](const AttentionUnit& unit, float* floats) {
        kernel.forward(all, unit, floats);
      });
  return {out, log_sums, drawn};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> pattern_attention_backward_of_cpu(
    const at::Tensor& gradient_,
    const at::Tensor& query_,
    const at::Tensor& key_,
    const at::Tensor& value_,
    const at::Tensor& out_,
    const at::Tensor& log_sums,
    const at::Tensor& first,
    const at::Tensor& end,
    const std::optional<at::Tensor>& seen,
    const std::optional<at::Tensor>& global_keys,
    double scale,
    double /*share*/,
    const at::Tensor& drawn,
    double dropout,
    int64_t first_head,
    int64_t layer_heads) {
  const at::Tensor gradient = with_rows(gradient_);
  const at::Tensor query = with_rows(query_);
  const at::Tensor key = with_rows(key_);
  const at::Tensor value = with_rows(value_);
  const at::Tensor out = with_rows(out_);
  const int64_t keys = key.size(2);
  at::Tensor of_query =
      by_token(query, query.size(1), query.size(2), query.size(3));
  at::Tensor of_key = by_token(query, key.size(1), keys, key.size(3));
  at::Tensor of_value = by_token(query, key.size(1), keys, value.size(3));
  const at::Tensor scratch = scratch_of(
      query,
      query.size(0) * key.size(1),
      attention_backward_scratch(keys, query.size(3), value.size(3)));
  if (is_dry_memory(of_query.const_data_ptr()) || of_key.numel() == 0) {
    return {of_query, of_key, of_value};
  }
  AttentionArguments all = arguments_of(
      query,
      key,
      value,
      out,
      log_sums,
      scale,
      drawn,
      {dropout, first_head, layer_heads});
  all.gradient = matrix_of(gradient);
  all.query_gradient = matrix_of(of_query);
  all.key_gradient = matrix_of(of_key);
  all.value_gradient = matrix_of(of_value);
  const ScheduledPattern pattern(
      first, end, seen, global_keys, query.size(0), query.size(2), keys);
  const AttentionKernel& kernel = attention_kernel(best_isa());
  for_units(
      pattern.units(key.size(1), /*all=*/true),
      scratch,
      [&](const AttentionUnit& unit, float* floats) {
        kernel.backward(all, unit, floats);
      });
  return {of_query, of_key, of_value};
}

/// Registers the operators with LibTorch.
void define_pattern_attention() {
  // Never destroyed: graphs may be freed at exit.
  static auto* const library = [] {
    auto* defined = new torch::Library(
        torch::Library::FRAGMENT, "tessera", std::nullopt, __FILE__, __LINE__);
    defined->def(
        "pattern_attention(Tensor query, Tensor key, Tensor value, Tensor first, Tensor end, Tensor? seen, Tensor? global_keys, float scale, float share, float dropout, int first_head, int layer_heads) -> (Tensor, Tensor, Tensor)");
    defined->def(
        "pattern_attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor out, Tensor log_sums, Tensor first, Tensor end, Tensor? seen, Tensor? global_keys, float scale, float share, Tensor drawn, float dropout, int first_head, int layer_heads) -> (Tensor, Tensor, Tensor)");
    defined->impl(
        "pattern_attention",
        torch::dispatch(c10::DispatchKey::CPU, &pattern_attention_of_cpu));
    defined->impl(
        "pattern_attention_backward",
        torch::dispatch(
            c10::DispatchKey::CPU, &pattern_attention_backward_of_cpu));
    return defined;
  }();
  static_cast<void>(library);
}

template <typename Signature>
c10::TypedOperatorHandle<Signature> attention_operator(const char* name) {
  define_pattern_attention();
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(name, "")
      .typed<Signature>();
}

std::optional<at::Tensor> where_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> call_pattern_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const AttentionPattern& pattern,
    double scale,
    const AttentionDropout& dropout) {
  static const auto op = attention_operator<PatternAttentionOperator>(
      "tessera::pattern_attention");
  return op.call(
      query,
      key,
      value,
      pattern.first,
      pattern.end,
      where_defined(pattern.seen),
      where_defined(pattern.global_keys),
      scale,
      pattern.share,
      dropout.probability,
      dropout.first_head,
      dropout.heads);
}

/// By operators that are differentiable themselves.
variable_list differentiable_attention_gradients(
    const at::Tensor& gradient,
    const variable_list& inputs,
    const AttentionPattern& pattern,
    double scale,
    const DroppedWeights& dropped) {
  const int64_t group = inputs[0].size(1) / inputs[1].size(1);
  const auto of_queries = [&](const at::Tensor& x) {
    return x.to(at::kFloat).repeat_interleave(group, 1);
  };
  const at::Tensor scores =
      at::matmul(
          inputs[0].to(at::kFloat) * scale,
          of_queries(inputs[1]).transpose(2, 3))
          .masked_fill(
              ~pattern.dense(), -std::numeric_limits<float>::infinity());
  at::Tensor weights = scores.softmax(-1);
  if (dropped.threshold != 0) {
    weights = weights * kept_weights(inputs[0], inputs[1].size(2), dropped);
  }
  const at::Tensor out =
      at::matmul(weights, of_queries(inputs[2])).to(inputs[0].scalar_type());
  variable_list wanted;
  for (const at::Tensor& input : inputs) {
    if (input.requires_grad()) {
      wanted.push_back(input);
    }
  }
  const variable_list found = torch::autograd::grad(
      {out}, wanted, {gradient}, /*retain_graph=*/true, /*create_graph=*/true);
  variable_list all;
  size_t next = 0;
  for (const at::Tensor& input : inputs) {
    all.push_back(input.requires_grad() ? found[next++] : at::Tensor());
  }
  return all;
}

class PatternAttentionFunction
    : public torch::autograd::Function<PatternAttentionFunction> {
 public:
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& query,
      const at::Tensor& key,
      const at::Tensor& value,
      const AttentionPattern& pattern,
      double scale,
      const AttentionDropout& dropout) {
    const auto [out, log_sums, drawn] =
        call_pattern_attention(query, key, value, pattern, scale, dropout);
    context->save_for_backward(
        {query,
         key,
         value,
         out,
         log_sums,
         pattern.first,
         pattern.end,
         pattern.seen,
         pattern.global_keys,
         drawn});
    context->saved_data["scale"] = scale;
    context->saved_data["share"] = pattern.share;
    context->saved_data["dropout"] = dropout.probability;
    context->saved_data["first_head"] = dropout.first_head;
    context->saved_data["layer_heads"] = dropout.heads;
    return out;
  }

  static variable_list backward(
      AutogradContext* context,
      const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    AttentionPattern pattern;
    pattern.first = saved[5];
    pattern.end = saved[6];
    pattern.seen = saved[7];
    pattern.global_keys = saved[8];
    pattern.queries = saved[0].size(2);
    pattern.keys = saved[1].size(2);
    pattern.share = context->saved_data["share"].toDouble();
    const double scale = context->saved_data["scale"].toDouble();
    const at::Tensor& drawn = saved[9];
    const AttentionDropout dropout{
        context->saved_data["dropout"].toDouble(),
        context->saved_data["first_head"].toInt(),
        context->saved_data["layer_heads"].toInt()};
    variable_list found;
    if (at::GradMode::is_enabled()) {
      found = differentiable_attention_gradients(
          gradients[0],
          {saved[0], saved[1], saved[2]},
          pattern,
          scale,
          dropped_weights(drawn, dropout));
    } else {
      static const auto op =
          attention_operator<PatternAttentionBackwardOperator>(
              "tessera::pattern_attention_backward");
      const auto [query, key, value] = op.call(
          gradients[0],
          saved[0],
          saved[1],
          saved[2],
          saved[3],
          saved[4],
          pattern.first,
          pattern.end,
          where_defined(pattern.seen),
          where_defined(pattern.global_keys),
          scale,
          pattern.share,
          drawn,
          dropout.probability,
          dropout.first_head,
          dropout.heads);
      found = {query, key, value};
    }
    return {found[0], found[1], found[2], {}, {}, {}};
  }
};

} // namespace

bool takes_pattern_attention(const at::Tensor& query) {
  return query.layout() == at::kStrided &&
         takes_pattern_attention(query.device(), query.scalar_type());
}

bool takes_pattern_attention(at::Device device, at::ScalarType dtype) {
#if defined(__x86_64__)
  const bool has_vectors = best_isa() != Isa::kPortable;
#else
  const bool has_vectors = false;
#endif
  return has_vectors && computes_on_cpu(device) &&
         (dtype == at::kFloat || c10::isReducedFloatingType(dtype));
}

int64_t pattern_attention_workspace(
    int64_t units,
    int64_t keys,
    int64_t features,
    int64_t value_features) {
  return scratch_threads(units) *
         attention_padded(
             attention_backward_scratch(keys, features, value_features)) *
         static_cast<int64_t>(sizeof(float));
}

at::Tensor pattern_attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const AttentionPattern& pattern,
    double scale,
    const AttentionDropout& dropout) {
  TESSERA_CHECK(
      query.dim() == 4 && key.dim() == 4 && value.dim() == 4 &&
          key.size(0) == query.size(0) && value.size(0) == query.size(0) &&
          key.size(3) == query.size(3) && value.size(2) == key.size(2) &&
          value.size(1) == key.size(1) && key.size(1) > 0 &&
          query.size(1) % key.size(1) == 0 &&
          key.scalar_type() == query.scalar_type() &&
          value.scalar_type() == query.scalar_type(),
      "pattern_attention: a query of sizes {} {}, a key of {} {} and a value of {} {}; expected [batch, heads, tokens, features] of one dtype, key and value with a number of heads that divides the query's",
      query.sizes(),
      query.scalar_type(),
      key.sizes(),
      key.scalar_type(),
      value.sizes(),
      value.scalar_type());
  TESSERA_CHECK(
      pattern.defined() && pattern.queries == query.size(2) &&
          pattern.keys == key.size(2),
      "pattern_attention: a pattern of {} queries and {} keys for a query of sizes {} and {} keys",
      pattern.queries,
      pattern.keys,
      query.sizes(),
      key.size(2));
  TESSERA_CHECK(
      dropout.probability >= 0 && dropout.probability <= 1,
      "pattern_attention: a probability of dropout of {}; it must be at least 0 and at most 1",
      dropout.probability);
  AttentionDropout dropped = dropout;
  if (dropped.heads == 0) {
    dropped.heads = query.size(1);
  }
  if (!at::GradMode::is_enabled() ||
      !(query.requires_grad() || key.requires_grad() ||
        value.requires_grad())) {
    return std::get<0>(
        call_pattern_attention(query, key, value, pattern, scale, dropped));
  }
  return PatternAttentionFunction::apply(
      query, key, value, pattern, scale, dropped);
}

} // namespace tessera::runtime
