'use strict';

// The colors of methods that cannot be seen on a dark page, and the colors that
// replace them there.
const ON_DARK = {'#000000': '#f0f0f0', '#0072b2': '#3d9fdc', '#332288': '#8f85e0', '#7f7f7f': '#a6a6a6', '#882255': '#d46aa0', '#ffffff': '#10151b'};
const dark = matchMedia('(prefers-color-scheme: dark)');
const charts = JSON.parse(document.getElementById('charts').textContent);
for (const spec of Object.values(charts)) {
  spec.data = {values: toRows(spec.data)};
}

function toRows(columns) {
  const [first] = Object.values(columns);
  return (first || []).map((_, i) => Object.fromEntries(
      Object.entries(columns).map(([name, values]) => [name, values[i]])));
}

function config() {
  const style = getComputedStyle(document.documentElement);
  const ink = style.getPropertyValue('--ink').trim();
  const line = style.getPropertyValue('--line').trim();
  return {
    background: null,
    axis: {labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line},
    legend: {labelColor: ink, titleColor: ink},
    text: {fill: ink},
  };
}

function themed(spec) {
  const text = JSON.stringify(spec);
  return JSON.parse(
      dark.matches ? text.replace(/#[0-9a-f]{6}/g, (color) => ON_DARK[color] || color) : text);
}

// Draws the charts that are shown; the others are drawn when they are chosen.
function draw() {
  for (const [name, spec] of Object.entries(charts)) {
    const chart = document.getElementById(`chart-${name}`);
    if (chart.hidden) continue;
    const place = chart.querySelector('div');
    vegaEmbed(place, themed(spec), {
      config: config(),
      renderer: 'svg',
      // Expressions are interpreted: the page may not make code of texts.
      ast: true,
      actions: {export: true, source: false, compiled: false, editor: false},
      downloadFileName: name,
    }).catch((error) => { place.textContent = `This chart cannot be drawn: ${error}`; });
  }
}

function toCsv(rows) {
  const columns = [...new Set(rows.flatMap(Object.keys))];
  const quoted = (value) => {
    let text = value === null || value === undefined ? '' : String(value);
    // No spreadsheet computes what a name says.
    if (typeof value === 'string' && isNaN(value) && /^[=+@\t\r\uff1d\uff0b\uff20\uff0d-]/.test(text)) text = `'${text}`;
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows.map((row) => columns.map((name) => row[name]))]
      .map((row) => row.map(quoted).join(',')).join('\n') + '\n';
}

function download(name, text) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], {type: 'text/csv'}));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

function sort(table, column, button) {
  const head = button.closest('th');
  const descending = head.getAttribute('aria-sort') === 'ascending';
  table.querySelectorAll('th[aria-sort]').forEach((other) => other.removeAttribute('aria-sort'));
  head.setAttribute('aria-sort', descending ? 'descending' : 'ascending');
  const key = (row) => {
    const cell = row.cells[column];
    return 'value' in cell.dataset ? Number(cell.dataset.value) : cell.textContent;
  };
  // Numbers come before texts, such as "diverged", in both directions of sorting.
  const compare = (a, b) => {
    if (typeof a !== typeof b) return typeof a === 'number' ? -1 : 1;
    const order = typeof a === 'number' ? a - b : a.localeCompare(b);
    return descending ? -order : order;
  };
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => compare(key(a), key(b)));
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll('table.sortable')) {
  table.querySelectorAll('thead button').forEach((button, column) => {
    button.addEventListener('click', () => sort(table, column, button));
  });
}
for (const button of document.querySelectorAll('button[data-chart]')) {
  const name = button.dataset.chart;
  button.addEventListener('click', () => download(`${name}.csv`, toCsv(charts[name].data.values)));
}
for (const choice of document.querySelectorAll('.figure select')) {
  choice.addEventListener('change', () => {
    for (const chart of choice.parentElement.querySelectorAll('.chart')) {
      chart.hidden = chart.id !== `chart-${choice.value}`;
    }
    draw();
  });
}
dark.addEventListener('change', draw);
draw();
