"""Figures of clients in clusters and in known groups."""

from collections.abc import Mapping, Sequence
import itertools

import matplotlib
from matplotlib import colors
import numpy as np
from sklearn import manifold

from experiments.reporting import looks
from experiments.reporting.plots import shading
from experiments.reporting.plots import style


@style.styled
def cluster_groups(
  groups: Mapping[str, Mapping[str, int]], *, title: str = ''
) -> style.Figure:
  """Draws how many clients of each known group are in each cluster.

  As in Motley, figure 6 (d).

  Args:
    groups: For each group, how many of its clients are in each cluster.
    title: The title, such as the name of the method.

  Returns:
    The figure.
  """
  clusters = list(next(iter(groups.values())))
  figure = style.new_figure(0.9 + 0.3 * len(clusters))
  plot = figure.subplots()
  places, left = np.arange(len(clusters)), np.zeros(len(clusters))
  for (group, counts), color in zip(
    groups.items(), itertools.cycle(looks.CATEGORIES)
  ):
    widths = np.array([counts[cluster] for cluster in clusters])
    bars = plot.barh(
      places, widths, left=left, color=color, height=0.6, label=group
    )
    plot.bar_label(
      bars,
      [str(n) if n else '' for n in widths],
      label_type='center',
      fontsize=7,
      color=shading.text_on(color),
    )
    left += widths
  plot.invert_yaxis()
  plot.set_yticks(places, clusters)
  plot.grid(visible=False, axis='y')
  style.in_whole_numbers(plot.xaxis)
  plot.set_xlabel('test clients')
  plot.set_ylabel('cluster')
  style.add_legend(figure, [plot], title)
  return figure


@style.styled
def confusion(
  counts: np.ndarray,
  groups: Sequence[str],
  clusters: Sequence[str],
  label: str,
  share: float,
  *,
  title: str = '',
) -> style.Figure:
  """Draws a matrix of the clients of each known group in each cluster.

  As in Silva et al. 2022, figures 3 and 5, for many groups and clusters.

  Args:
    counts: The number of clients of each group in each cluster, `[groups,
      clusters]`.
    groups: The names of the groups.
    clusters: The names of the clusters.
    label: The label of the clusters.
    share: The share of the clients that are on the diagonal.
    title: The title, such as the name of the method.

  Returns:
    The figure.
  """
  figure = style.new_figure(0.9 + 0.22 * len(groups))
  plot = figure.subplots()
  shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
  blues = matplotlib.colormaps['Blues']
  plot.imshow(shares, cmap=blues, vmin=0, vmax=1, aspect='auto')
  for i, j in zip(*np.nonzero(counts)):
    plot.text(
      j,
      i,
      str(counts[i, j]),
      color=shading.text_on(colors.to_hex(blues(shares[i, j]))),
      ha='center',
      va='center',
      fontsize=6,
    )
  plot.set_xticks(range(len(clusters)), clusters)
  plot.set_yticks(range(len(groups)), groups)
  plot.grid(visible=False)
  plot.set_xlabel(label)
  plot.set_ylabel('group')
  style.add_title(plot, f'{title}, {share:.0%} in the cluster of their group')
  return figure


@style.styled
def embeddings(
  points: Sequence[np.ndarray], groups: Sequence[str], *, title: str = ''
) -> style.Figure:
  """Draws clients' embeddings in two dimensions, with the known groups.

  As in Silva et al. 2022, figures 3 and 5, by t-SNE: embeddings that are near
  each other are similar, but larger distances have no meaning.

  Args:
    points: The embedding of each client.
    groups: The group of each client.
    title: The title, such as the name of the method.

  Returns:
    The figure.
  """
  # The default perplexity of t-SNE, unless there are few clients.
  perplexity = min(30.0, (len(points) - 1) / 3)
  places = manifold.TSNE(
    init='pca', perplexity=perplexity, random_state=0
  ).fit_transform(np.array(points))
  figure = style.new_figure(3.4)
  plot = figure.subplots()
  known = np.array(groups)
  names = sorted(set(groups), key=lambda name: (len(name), name))
  looks_of_groups = itertools.product(looks.MARKERS, looks.CATEGORIES)
  for name, (marker, color) in zip(names, itertools.cycle(looks_of_groups)):
    x, y = places[known == name].T
    plot.scatter(x, y, s=9, marker=marker, color=color, label=name)
  plot.set_xticks([])
  plot.set_yticks([])
  style.add_legend(figure, [plot], title)
  return figure
