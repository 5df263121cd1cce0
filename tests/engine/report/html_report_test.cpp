// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/html_report.h"

#include <gtest/gtest.h>

namespace tessera::engine::html_report_test {

TEST(HtmlReport, IsOnePageThatLoadsNothing) {
  HtmlReport report;
  report.title = "a <run> & more";
  report.facts = {{"last loss", "0.25"}};
  report.shares = {{"forward", 0.03}, {"exposed transfer", 0.01}};
  LinePlot plot;
  plot.title = "Training loss";
  plot.series.push_back({"loss", {{1, 2}, {2, 1}}});
  report.plots.push_back(plot);
  const std::string page = to_html(report);
  EXPECT_EQ(page, to_html(report));
  for (const char* expected :
       {"<h1>a &lt;run&gt; &amp; more</h1>",
        "<td>0.25</td>",
        // 30 of 40 ms, and the rest.
        "<td>forward</td><td class=\"n\">30.0</td><td class=\"n\">75.0</td>",
        "<td>exposed transfer</td><td class=\"n\">10.0</td>"
        "<td class=\"n\">25.0</td>",
        "<title>Training loss</title>",
        "</html>"}) {
    EXPECT_NE(page.find(expected), std::string::npos)
        << expected << " is not in:\n"
        << page;
  }
  for (const char* reference : {"src=", "href=", "<script", "<run>"}) {
    EXPECT_EQ(page.find(reference), std::string::npos) << reference;
  }
}

TEST(HtmlReport, WithoutMeasuredTimesHasNoTableOfThem) {
  HtmlReport report;
  report.title = "run";
  EXPECT_EQ(
      to_html(report).find("Where the time of a step goes"), std::string::npos);
}

} // namespace tessera::engine::html_report_test
