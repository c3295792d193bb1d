// Grafana's published types as they look in JSON: an enum is one of its values.
import type * as grafana from "@grafana/schema";
import type * as bargauge from "@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen";
import type * as heatmap from "@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen";
import type * as stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as table from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";
import type * as timeseries from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

type Plain<T> = T extends string
  ? `${T}`
  : T extends number
    ? number extends T
      ? number
      : `${T}` extends `${infer N extends number}` ? N : T
    : T extends Array<infer E>
      ? Plain<E>[]
      : T extends object
        ? { [K in keyof T]: Plain<T[K]> }
        : T;

type Own = "type" | "options" | "fieldConfig" | "targets" | "datasource";
type Source = { type: string; uid: string };
type Target = { refId: string; datasource: Source } & Record<string, unknown>;
type Look<C> = Omit<grafana.FieldConfig, "custom"> & { custom?: Partial<C> };
type Of<K extends string, O, C> = Omit<grafana.Panel, Own> & {
  type: K;
  options: O;
  datasource: Source;
  targets: Target[];
  fieldConfig: { defaults: Look<C>; overrides: grafana.FieldConfigSource["overrides"] };
};

// Grafana fills in what is left out here, from its defaults.
type Optional<O, K extends keyof O> = Omit<O, K> & Partial<Pick<O, K>>;

type Panel =
  | Of<"timeseries", timeseries.Options, timeseries.FieldConfig>
  | Of<"table", Optional<table.Options, "frameIndex">, table.FieldConfig>
  | Of<"stat", stat.Options, {}>
  | Of<"bargauge", Optional<bargauge.Options, "legend">, {}>
  | Of<"heatmap", heatmap.Options, heatmap.FieldConfig>;

// What a query holds beside refId is its data source's own.
type Annotation = Omit<grafana.AnnotationQuery, "target" | "datasource"> & { datasource: Source; target: Target };

export type Dashboard = Plain<
  Omit<grafana.Dashboard, "panels" | "annotations"> & { panels: Panel[]; annotations: { list: Annotation[] } }
>;
export type Looks = {
  timeseries: Plain<Look<timeseries.FieldConfig>>;
  table: Plain<Look<table.FieldConfig>>;
  stat: Plain<Look<{}>>;
  bargauge: Plain<Look<{}>>;
  heatmap: Plain<Look<heatmap.FieldConfig>>;
};
