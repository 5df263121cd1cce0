// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/text_metrics.h"

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/core/suggest.h"
#include "tessera/text/metrics/answers.h"
#include "tessera/text/metrics/correlation.h"

#include <algorithm>

namespace tessera::tasks {

namespace {

using Group = std::vector<GroupedPrediction>;

const GroupedPrediction& best_of(const Group& group) {
  return *std::max_element(
      group.begin(),
      group.end(),
      [](const GroupedPrediction& a, const GroupedPrediction& b) {
        return a.score < b.score;
      });
}

/// The mean over groups.
double mean_over_groups(
    const TextPredictions& predictions,
    double (*value)(const Group& group)) {
  double sum = 0;
  for (const auto& [key, group] : predictions.groups) {
    sum += value(group);
  }
  return sum / static_cast<double>(predictions.groups.size());
}

/// In the order in which they are usual.
std::vector<std::string> usual_metrics(zoo::HeadLabels labels) {
  return labels == zoo::HeadLabels::kNumbers
             ? std::vector<std::string>{"pearson", "spearman"}
         : labels == zoo::HeadLabels::kClasses
             ? std::vector<std::string>{"f1_micro", "f1_macro", "accuracy"}
             : std::vector<std::string>{"accuracy"};
}

} // namespace

const std::vector<TextMetric>& text_metrics() {
  using P = TextPredictions;
  const std::vector<zoo::HeadLabels> one{zoo::HeadLabels::kClass};
  const std::vector<zoo::HeadLabels> any{
      zoo::HeadLabels::kClass, zoo::HeadLabels::kClasses};
  const std::vector<zoo::HeadLabels> numbers{zoo::HeadLabels::kNumbers};
  static const std::vector<TextMetric> metrics{
      {"accuracy",
       "accuracy",
       true,
       any,
       [](const P& p) { return p.counts.accuracy(); }},
      {"f1", "F1", true, one, [](const P& p) { return p.counts.f1(1); }},
      {"f1_macro",
       "macro F1",
       true,
       any,
       [](const P& p) {
         return p.counts.f1_macro(
             /*all_classes=*/p.labels == zoo::HeadLabels::kClasses);
       }},
      {"f1_micro",
       "micro F1",
       true,
       any,
       [](const P& p) { return p.counts.f1_micro(); }},
      {"matthews",
       "Matthews correlation",
       false,
       one,
       [](const P& p) { return p.counts.matthews(); }},
      {"choice_accuracy",
       "accuracy of choices",
       true,
       one,
       [](const P& p) {
         return mean_over_groups(p, [](const Group& g) {
           return best_of(g).is_wanted ? 1.0 : 0.0;
         });
       },
       /*needs_groups=*/true},
      {"group_exact_match",
       "exact match",
       true,
       one,
       [](const P& p) {
         return mean_over_groups(p, [](const Group& g) {
           return std::all_of(
                      g.begin(),
                      g.end(),
                      [](const GroupedPrediction& one) {
                        return (one.score > 0) == one.is_wanted;
                      })
                      ? 1.0
                      : 0.0;
         });
       },
       /*needs_groups=*/true},
      {"answer_f1",
       "F1 of answers",
       true,
       one,
       [](const P& p) {
         return mean_over_groups(p, [](const Group& g) {
           const GroupedPrediction& best = best_of(g);
           return text::answer_f1(best.candidate, best.answers);
         });
       },
       /*needs_groups=*/true},
      {"answer_exact_match",
       "exact match",
       true,
       one,
       [](const P& p) {
         return mean_over_groups(p, [](const Group& g) {
           const GroupedPrediction& best = best_of(g);
           return text::answer_exact_match(best.candidate, best.answers);
         });
       },
       /*needs_groups=*/true},
      {"pearson",
       "Pearson correlation",
       false,
       numbers,
       [](const P& p) { return text::pearson(p.predicted, p.wanted); }},
      {"spearman", "Spearman correlation", false, numbers, [](const P& p) {
         return text::spearman(p.predicted, p.wanted);
       }}};
  return metrics;
}

std::vector<TextMetric> text_metrics_for(
    const std::vector<std::string>& names,
    zoo::HeadLabels labels,
    size_t classes) {
  std::vector<std::string> usable;
  std::vector<std::string> shown; // others are of presets
  for (const TextMetric& metric : text_metrics()) {
    if (std::find(metric.of.begin(), metric.of.end(), labels) !=
        metric.of.end()) {
      usable.emplace_back(metric.name);
      if (!metric.needs_groups) {
        shown.emplace_back(metric.name);
      }
    }
  }
  std::vector<TextMetric> found;
  for (const std::string& name :
       names.empty() ? usual_metrics(labels) : names) {
    const std::string nearest = runtime::nearest_name(name, shown);
    TESSERA_CHECK(
        std::find(usable.begin(), usable.end(), name) != usable.end(),
        "data.metric is \"{}\"; for these labels it must be one of '{}'{}",
        name,
        runtime::join_names(shown),
        nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
    TESSERA_CHECK(
        name != "f1" || classes == 2,
        "data.metric is \"f1\", of the second of two classes, but there are {}; use f1_macro or f1_micro",
        classes);
    found.push_back(*std::find_if(
        text_metrics().begin(),
        text_metrics().end(),
        [&](const TextMetric& metric) { return metric.name == name; }));
  }
  return found;
}

} // namespace tessera::tasks
