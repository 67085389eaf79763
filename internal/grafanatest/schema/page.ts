// The types of Grafana that its provisioning reads, as far as these dashboards use them.
import * as bargauge from '@grafana/schema/dist/esm/raw/composable/bargauge/panelcfg/x/BarGaugePanelCfg_types.gen';
import * as dashboard from '@grafana/schema/dist/esm/raw/dashboard/x/dashboard_types.gen';
import * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

export interface Page {
  dashboard?: dashboard.Dashboard;
  // The options of a panel, by its type. Grafana fills in those that are missing.
  options?: {
    bargauge?: Partial<bargauge.Options>;
    stat?: Partial<stat.Options>;
    table?: Partial<table.Options>;
    timeseries?: Partial<timeseries.Options>;
  };
  // fieldConfig.defaults.custom of a panel, by its type.
  custom?: {
    table?: Partial<table.FieldConfig>;
    timeseries?: Partial<timeseries.FieldConfig>;
  };
}
