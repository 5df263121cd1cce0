// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/inspection/inspect.h"

#include "tessera/runtime/core/log.h"
#include "tessera/runtime/core/name_patterns.h"
#include "tessera/runtime/core/other_names.h"
#include "tessera/sharding/paging/pager.h"
#include "tessera/sharding/paging/tied_copies.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <sstream>
#include <utility>

namespace tessera {

namespace {

using Row = std::vector<std::string>;

runtime::NamePatterns patterns_of(const std::string& pattern) {
  return runtime::NamePatterns("inspect_model", {pattern});
}

TensorSummary summarize(
    const std::string& name,
    const at::Tensor& tensor,
    const at::Tensor& gradient,
    double gradient_scale = 1) {
  TensorSummary summary{name, tensor.sizes().vec(), {}, std::nullopt};
  summary.value.add(tensor);
  if (gradient.defined()) {
    summary.gradient.emplace().add(gradient, 1 / gradient_scale);
  }
  return summary;
}

/// Merges values and gradients over the ranks; a gradient that any rank has
/// counts on all of them.
/// @param experts per item, the ranks that have the same experts, if it is of a
///   divided expert; empty: no item is.
void merge_summaries(
    sharding::Pager& pager,
    std::vector<TensorSummary>& summary,
    const std::vector<std::vector<int>>& experts = {}) {
  std::vector<sharding::TensorStatistics> statistics;
  for (const TensorSummary& item : summary) {
    statistics.push_back(item.value);
    statistics.push_back(item.gradient.value_or(sharding::TensorStatistics{}));
  }
  std::vector<std::vector<int>> ranks;
  for (const std::vector<int>& of_item : experts) {
    ranks.insert(ranks.end(), 2, of_item);
  }
  sharding::merge_over_ranks(pager, statistics, ranks);
  for (size_t i = 0; i < summary.size(); ++i) {
    summary[i].value = statistics[2 * i];
    summary[i].gradient.reset();
    if (statistics[2 * i + 1].count > 0) {
      summary[i].gradient = statistics[2 * i + 1];
    }
  }
}

/// Merges values and gradients of what tensor-parallel ranks divide.
/// @param picked numbers of the parameters.
void merge_parts(
    sharding::Pager& pager,
    const std::vector<size_t>& picked,
    std::vector<TensorSummary>& summary) {
  std::vector<TensorSummary*> divided;
  std::vector<sharding::TensorStatistics> statistics;
  for (size_t i = 0; i < picked.size(); ++i) {
    if (pager.pages().parameter(picked[i]).record.spec.is_divided()) {
      divided.push_back(&summary[i]);
      statistics.push_back(summary[i].value);
      statistics.push_back(
          summary[i].gradient.value_or(sharding::TensorStatistics{}));
    }
  }
  if (divided.empty()) {
    return;
  }
  sharding::merge_over_tensor_ranks(pager, statistics);
  for (size_t i = 0; i < divided.size(); ++i) {
    divided[i]->value = statistics[2 * i];
    if (statistics[2 * i + 1].count > 0) {
      divided[i]->gradient = statistics[2 * i + 1];
    }
  }
}

/// Summarizes this rank's part of parameter `index`.
/// @param master of its page.
TensorSummary summarize_local_part(
    const sharding::Pager& pager,
    size_t index,
    const at::Tensor& master,
    double gradient_scale) {
  const auto& [page, position] = pager.pages().entries()[index];
  const sharding::PagedParameter& parameter = page.parameters()[position];
  const sharding::GradientBucket* bucket = page.gradients.get();
  TensorSummary summary{
      parameter.record.name(), parameter.record.spec.sizes, {}, std::nullopt};
  if (page.spec().mesh.index(sharding::kReplicateAxis) != 0) {
    return summary; // another rank counts the same elements
  }
  const runtime::FlatSpan self_span = page.spec().shard();
  for (const runtime::FlatSegment& segment :
       runtime::segments_of_shard({&parameter.span, 1}, self_span)) {
    const auto part = [&](const at::Tensor& shard) {
      return shard.narrow(0, segment.shard_offset, segment.numel);
    };
    summary.value.add(part(master));
    if (bucket != nullptr && bucket->has_gradient(position)) {
      summary.gradient.emplace().add(
          part(bucket->shard().load()), bucket->factor() / gradient_scale);
    }
  }
  return summary;
}

std::string text_of(const std::vector<int64_t>& sizes) {
  std::string text = "[";
  for (const int64_t size : sizes) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

std::string text_of(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

void append_numbers(
    Row& row,
    const std::optional<sharding::TensorStatistics>& of) {
  if (!of) {
    row.insert(row.end(), 5, "-");
    return;
  }
  for (const double value :
       {of->max, of->min, of->mean, of->std(), of->norm()}) {
    row.push_back(text_of(value));
  }
}

/// Left-aligns the first columns (names) and right-aligns the others (numbers).
std::string format_table(const std::vector<Row>& rows, size_t left_columns) {
  std::vector<size_t> widths(rows.front().size());
  for (const Row& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], row[c].size());
    }
  }
  std::string table;
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - row[c].size(), ' ');
      line += c == 0 ? "" : "  ";
      line += c < left_columns ? row[c] + padding : padding + row[c];
    }
    table += (table.empty() ? "" : "\n") + line;
  }
  return table;
}

} // namespace

std::vector<TensorSummary> inspect_model(
    const torch::nn::Module& module,
    const std::string& pattern) {
  runtime::NamePatterns patterns = patterns_of(pattern);
  std::vector<TensorSummary> summary;
  for (const auto& item : module.named_parameters()) {
    if (patterns.first_match(item.key())) {
      summary.push_back(
          summarize(item.key(), item.value(), item.value().grad()));
    }
  }
  patterns.check_all_used();
  return summary;
}

std::vector<TensorSummary> inspect_model(
    sharding::Pager& pager,
    const std::string& pattern,
    double gradient_scale) {
  runtime::NamePatterns patterns = patterns_of(pattern);
  const auto count = static_cast<int64_t>(pager.pages().entries().size());
  const at::Tensor matches = at::zeros({count}, at::kDouble);
  for (int64_t i = 0; i < count; ++i) {
    for (const std::string& name : runtime::with_other_names(
             pager.pages().parameter(static_cast<size_t>(i)).record.spec.names,
             pager.options().other_names)) {
      if (patterns.first_match(name)) {
        matches[i] = 1;
      }
    }
  }
  pager.settle_gradients({sharding::RankIntent::Kind::kInspect, -1, -1});
  sharding::add_tied_gradients_to_read(pager, "inspect_model");
  // A pattern may match the experts of one rank only.
  pager.max_over_ranks(matches);
  const DeviceMesh& model = pager.ranks().model();
  if (matches.max().item<double>() == 0) {
    if (model.size(sharding::kPipelineAxis) == 1) {
      patterns.check_all_used();
    }
    // Stages may inspect their parameters at other times.
    log_warning(
        "inspect_model: '{}' matches nothing on pipeline stage {}{}",
        pattern,
        model.index(sharding::kPipelineAxis),
        patterns.nearest_hint(pattern, patterns.names()));
    return {};
  }
  std::vector<size_t> picked;
  for (int64_t i = 0; i < count; ++i) {
    if (matches[i].item<double>() > 0) {
      picked.push_back(static_cast<size_t>(i));
    }
  }
  std::vector<TensorSummary> summary;
  std::vector<std::vector<int>> experts;
  const sharding::Page* current = nullptr;
  at::Tensor master; // of the current page; may have to be read from disk
  for (const size_t index : picked) {
    sharding::Page& next = pager.pages().entries()[index].page;
    if (current != &next) {
      current = &next;
      master = pager.scopes().read_master(next);
    }
    summary.push_back(
        summarize_local_part(pager, index, master, gradient_scale));
    const sharding::PageSpec& page = next.spec();
    std::vector<int>& indices = experts.emplace_back();
    if (page.of_experts) {
      const DeviceMesh shards = page.mesh.slice({kShardAxis});
      for (const int rank : shards.ranks()) {
        indices.push_back(pager.ranks().of_module().mesh().position_of(rank));
      }
    }
  }
  merge_summaries(pager, summary, experts);
  merge_parts(pager, picked, summary);
  return summary;
}

std::vector<TensorSummary> inspect_tensor(const TensorRecorder& recorder) {
  std::vector<TensorSummary> summary;
  for (const auto& record : recorder.records()) {
    summary.push_back(
        summarize(record.name, record.tensor, record.tensor.grad()));
  }
  return summary;
}

std::vector<TensorSummary> inspect_tensor(
    sharding::Pager& pager,
    const TensorRecorder& recorder,
    double gradient_scale) {
  std::vector<TensorSummary> summary;
  for (const auto& record : recorder.records()) {
    summary.push_back(summarize(
        record.name, record.tensor, record.tensor.grad(), gradient_scale));
  }
  merge_summaries(pager, summary);
  return summary;
}

std::string format_summary(const std::vector<TensorSummary>& summary) {
  std::vector<Row> rows{
      {"name",
       "shape",
       "max",
       "min",
       "mean",
       "std",
       "norm",
       "grad max",
       "grad min",
       "grad mean",
       "grad std",
       "grad norm"}};
  for (const TensorSummary& item : summary) {
    Row row{item.name, text_of(item.sizes)};
    append_numbers(row, item.value);
    append_numbers(row, item.gradient);
    rows.push_back(std::move(row));
  }
  return format_table(rows, /*left_columns=*/2);
}

} // namespace tessera
