// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/report/html_report.h"

#include "tessera/engine/report/markup.h"
#include "tessera/engine/report/plot_ticks.h"

namespace tessera::engine {

namespace {

constexpr const char* kStyle =
    "body{font-family:'Helvetica Neue','Segoe UI','DejaVu Sans',Arial,"
    "sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}"
    "td,th{padding:.25em 1em .25em 0;text-align:left}"
    "td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}"
    ".bar{background:#1f77b4;height:.8em}"
    "svg{max-width:100%;height:auto}"
    "pre{overflow-x:auto}"
    "@media(prefers-color-scheme:dark){:root{color-scheme:dark}"
    "body{background:#191919;color:#ddd}"
    "svg{filter:invert(.9) hue-rotate(180deg)}}";

std::string facts_table(const HtmlReport& report) {
  std::string out = "<table>\n";
  for (const auto& [name, value] : report.facts) {
    out += "<tr><th>" + escaped_markup(name) + "</th><td>" +
           escaped_markup(value) + "</td></tr>\n";
  }
  return out + "</table>\n";
}

std::string shares_table(const std::vector<ReportShare>& shares) {
  double total = 0;
  for (const ReportShare& share : shares) {
    total += share.seconds;
  }
  std::string out =
      "<h2>Where the time of a step goes</h2>\n<table>\n"
      "<tr><th>part</th><th class=\"n\">ms</th><th class=\"n\">%</th>"
      "<th></th></tr>\n";
  for (const ReportShare& share : shares) {
    const double percent = total > 0 ? 100 * share.seconds / total : 0;
    out += "<tr><td>" + escaped_markup(share.label) + "</td><td class=\"n\">" +
           fixed(1000 * share.seconds, 1) + "</td><td class=\"n\">" +
           fixed(percent, 1) +
           "</td><td style=\"width:20em\"><div class=\"bar\" style=\"width:" +
           fixed(percent, 1) + "%\"></div></td></tr>\n";
  }
  return out + "</table>\n";
}

} // namespace

std::string to_html(const HtmlReport& report) {
  const std::string title = escaped_markup(report.title);
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<title>" +
      title + "</title>\n<style>" + kStyle + "</style>\n</head>\n<body>\n<h1>" +
      title + "</h1>\n";
  out += facts_table(report);
  if (!report.shares.empty()) {
    out += shares_table(report.shares);
  }
  for (const LinePlot& plot : report.plots) {
    out += to_svg(plot);
  }
  if (!report.configuration.empty()) {
    out += "<details>\n<summary>Configuration</summary>\n<pre>" +
           escaped_markup(report.configuration) + "</pre>\n</details>\n";
  }
  return out + "</body>\n</html>\n";
}

} // namespace tessera::engine
